"""Questions and answers: SQuAD's files, windows of a context, spans of an answer, the official metrics."""
