"""Task of labelling words, such as named entities, also by a BiLSTM on a frozen BERT."""

from typing import Any

import numpy as np
from transformers import set_seed

from bert_hf.config.finetuning_arguments import TokenClassificationArguments
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.finetuning.heads.head import Kept
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.tagged_sentences import TaggedSentences
from bert_hf.finetuning.tasks.task import Task


class TokenClassificationTask(Task):
    """Sentences of labelled words; with --feature_based a BiLSTM on a frozen BERT is trained on them."""

    head_name = "token_classification"
    arguments = TokenClassificationArguments
    splits_test = False
    identity_options = ("document_context", "feature_based")
    example = "Anna Smith lives in London."
    task_args: TokenClassificationArguments
    parts: dict[str, TaggedSentences]

    @classmethod
    def make_head(cls, task_args: Any, tokenizer: Any, head: Any = None) -> Any:
        if task_args.feature_based and head in (None, cls.head_name):
            head = "frozen_features"
        return super().make_head(task_args, tokenizer, head)

    def groups(self, rows: TaggedSentences) -> np.ndarray:
        """Return the groups of near-duplicate sentences, and whole documents where the files separate them."""
        files = {where for where, _, _ in rows.places}
        has_documents = len(set(rows.documents)) > len(files)  # else each file is one document
        texts = [" ".join(words) for words in rows.words]
        return near_duplicate_groups(texts, rows.documents if has_documents else None)

    def make_frozen_network(self, bert: Any, args: FineTuningArguments) -> tuple[Any, str]:
        """Return a BiLSTM tagger on a `BertModel`, and a line on its weights; set the tagger's defaults in `args`."""
        from bert_hf.finetuning.heads.frozen_features import EPOCHS, LEARNING_RATE, make_tagger

        set_seed(args.seed)
        tagger: Any = make_tagger(bert, str(self.task_args.feature_based), self.task_args.max_seq_length)
        tagger = tagger.to(args.device)
        self.head.attach(tagger)

        args.learning_rate = LEARNING_RATE if args.learning_rate is None else args.learning_rate
        args.num_train_epochs = EPOCHS if args.num_train_epochs is None else args.num_train_epochs
        args.bf16 = False if args.bf16 is None else args.bf16
        args.neftune_noise_alpha = None  # it would disturb embeddings that are not computed again
        trained = sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad)
        return tagger, f"BERT is frozen; newly initialized: BiLSTM and classifier, {trained:,} parameters"

    def row_identity(self, part: str) -> Any:
        rows = self.parts[part]
        return [rows.words, rows.tags, rows.documents]

    def usage(self, model: str) -> str:
        if not self.head.stock:
            return super().usage(model)
        stride = self.task_args.max_seq_length // 4  # overlap of the windows in which the pipeline reads long texts
        return f"""from transformers import pipeline

tagger = pipeline("token-classification", model="{model}", aggregation_strategy="first", stride={stride})
tagger("{self.example}")"""

    def limits(self) -> list[str]:
        limit = "Training and metrics read each sentence with its neighbours in the document; the code above does not."
        return [limit] if self.task_args.document_context else []

    def report(self, part: str, metrics: dict, baselines: dict, kept: Kept) -> str:
        """Return the table of entities."""
        return f"{part}\n{self.head.table(self.parts[part], self.predictions(part, kept))}"
