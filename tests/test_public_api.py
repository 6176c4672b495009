import subprocess
import sys

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
        "train_tokenizer",
    ]


def test_all_of_it_is_there_and_described():
    for name in bert_hf.__all__:
        assert getattr(bert_hf, name).__doc__


def test_the_package_alone_loads_no_library():
    loaded = "{name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'evaluate', 'datasets'}"
    subprocess.run([sys.executable, "-c", f"import sys, bert_hf; assert not {loaded}"], check=True)
