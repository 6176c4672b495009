import bert_hf


def test_all_is_exactly_this():
    assert bert_hf.__all__ == [
        "BertForPreTraining",
        "BertModel",
        "ClassificationArguments",
        "ClassificationTask",
        "Corpus",
        "DataCollatorForPreTraining",
        "FineTuner",
        "FineTuningArguments",
        "InputError",
        "MultipleChoiceTask",
        "PreTrainer",
        "PreTrainingArguments",
        "PreTrainingExamples",
        "QuestionAnsweringArguments",
        "QuestionAnsweringTask",
        "ResumableTrainer",
        "TaskArguments",
        "TokenClassificationArguments",
        "TokenClassificationTask",
        "load_tokenizer",
        "predict",
        "print_summary",
        "train_tokenizer",
    ]


def test_all_of_it_is_there_and_described():
    for name in bert_hf.__all__:
        assert getattr(bert_hf, name).__doc__
