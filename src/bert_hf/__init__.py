"""BERT, pre-trained from scratch and fine-tuned, in the Hugging Face ecosystem."""

from bert_hf.collator import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.corpus import Corpus
from bert_hf.errors import InputError
from bert_hf.modeling import BertForPreTraining, BertModel
from bert_hf.tokenization import load_tokenizer, train_tokenizer
from bert_hf.trainer import PreTrainer, SafeTrainer

__all__ = [
    "BertForPreTraining",
    "BertModel",
    "Corpus",
    "DataCollatorForPreTraining",
    "InputError",
    "PreTrainer",
    "PreTrainingExamples",
    "SafeTrainer",
    "load_tokenizer",
    "train_tokenizer",
]
