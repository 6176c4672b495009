"""Reads the data of the probe: labelled rows with their folds, draws of few labels, held-out text, minimal pairs."""

import dataclasses
import itertools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold
from transformers import PreTrainedTokenizerBase

from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.config.arguments import CorpusArguments
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import ExampleNumber, Phase
from bert_hf.data.text.input_files import compression, expand
from bert_hf.data.text.readers import read_rows, whole_text
from bert_hf.errors import InputError
from bert_hf.finetuning.baselines import cut_texts
from bert_hf.finetuning.known_tasks import order_labels
from bert_hf.finetuning.labelled.columns import CLASSES, NamedColumns, as_number
from bert_hf.finetuning.labelled.datasets import read_labelled
from bert_hf.finetuning.labelled.texts import LabelledTexts
from bert_hf.finetuning.splitting.near_duplicates import near_duplicate_groups
from bert_hf.models.functional import IGNORE_INDEX

MIN_PER_CLASS = 2  # rows of each class in a draw of few labels, where there are so many


# ---- labelled rows


@dataclass
class LabelledTask:
    """Labelled rows: N texts, or pairs of texts.

    Attributes:
        labels: (N,) class numbers; of two classes, 1 is the positive one.
        groups: (N,) equal for near-duplicates, which must stay in one part of a split.
    """

    name: str
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    label_names: tuple[str, ...]
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.label_names)

    def joined(self) -> list[str]:
        """One string a row, for what counts words."""
        return self._rows().joined()

    def seen(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> np.ndarray:
        """(N,) one string a row, with the part of each text that is in `encoded`: for what is compared with it."""
        return np.array(cut_texts(self._rows(), tokenizer, max_seq_length).joined(), dtype=object)

    def _rows(self) -> LabelledTexts:
        return LabelledTexts(self.texts, None, pairs=self.pairs)

    def encoded(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> list[dict]:
        """`input_ids` and `token_type_ids` of each row, special tokens included, cut to `max_seq_length`."""
        found = tokenizer(self.texts, self.pairs, truncation=True, max_length=max_seq_length).data
        rows = zip(found["input_ids"], found["token_type_ids"], strict=True)
        return [{"input_ids": ids, "token_type_ids": types} for ids, types in rows]


def read_tasks(probe_args: ProbeArguments) -> list[LabelledTask]:
    """One task for each word of `--train_file`, for the parts that read labelled rows.

    Raises:
        InputError: a file cannot be read, has one label only, or too few rows of a label for the folds.
    """
    parts = set(probe_args.chosen_parts())
    if not parts - {"nsp", "grammar"}:
        return []

    tasks: dict[str, LabelledTask] = {}
    for pattern in probe_args.train_file or ():
        task = _read_task(pattern, probe_args)
        if parts & {"features", "few_labels"}:
            check_folds(task, probe_args.folds)
        numbered = (f"{task.name}-{number}" for number in itertools.count(2))
        task.name = next(name for name in itertools.chain([task.name], numbered) if name not in tasks)
        tasks[task.name] = task
    return list(tasks.values())


def _read_task(pattern: str, probe_args: ProbeArguments) -> LabelledTask:
    named = NamedColumns(probe_args.text_column, probe_args.text_pair_column, probe_args.label_column, CLASSES)
    rows = read_labelled([pattern], named, probe_args.encoding)
    label_names = order_labels(rows.classes())
    _refuse_measured(label_names, rows)

    # A random sample where there are too many, in the order of the file
    chosen = np.sort(np.random.default_rng(probe_args.seed).permutation(len(rows))[: probe_args.max_rows])
    rows = rows.take(chosen)
    labels, groups = rows.targets(label_names), near_duplicate_groups(rows.joined())
    return LabelledTask(_task_name(pattern), rows.texts, rows.pairs, labels, label_names, groups)


def _refuse_measured(label_names: tuple[str, ...], rows: LabelledTexts) -> None:
    """Refuses labels that are numbers with a fraction: nothing here is a regression."""
    numbers = [as_number(name) for name in label_names]
    broken = [name for name, number in zip(label_names, numbers, strict=True) if number and not number.is_integer()]
    if broken and None not in numbers:
        what = f"the labels are numbers such as {broken[0]}, and the probe needs classes"
        raise InputError(what, where=rows.file(), remedy="name another --label_column, or leave the file out")


def _task_name(pattern: str) -> str:
    """The name of the (first) file, with its folder's where it is `train`, `dev` or `test`."""
    path = Path(expand([pattern])[0])
    stem = Path(path.stem).stem if compression(path) else path.stem
    return f"{path.parent.name}-{stem}" if stem in ("train", "dev", "test") else stem


def check_folds(task: LabelledTask, folds: int) -> None:
    """Refuses a task with a class of fewer rows, or fewer rows that differ in their words, than there are folds.

    Raises:
        InputError: with the number of rows.
    """
    fewest = min(len(np.unique(task.groups[task.labels == one])) for one in range(task.classes))
    if fewest < folds:
        what = f"a label has {fewest} rows that differ in their words, too few for {folds} folds"
        raise InputError(what, where=task.name, remedy="give more rows, or fewer --folds")


def outer_folds(task: LabelledTask, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(training rows, test rows) of each fold: stratified, near-duplicates in one of the two (see `check_folds`)."""
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    return list(splitter.split(task.texts, task.labels, task.groups))


def draw_rows(labels: np.ndarray, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray | None:
    """`count` of `rows` (ascending), classes in proportion but `MIN_PER_CLASS` of each; None where there are fewer.

    Args:
        labels: (N,) class number of every row there is.
        rows: (R,) the rows that may be drawn.
    """
    if count > len(rows):
        return None
    shuffled = rng.permutation(rows)

    classes, sizes = np.unique(labels[rows], return_counts=True)
    least = np.minimum(sizes, min(MIN_PER_CLASS, count // len(classes)))
    if not least.any():  # more classes than rows: at least two, without which nothing can be fitted
        least[np.argsort(-sizes, kind="stable")[:2]] = 1
    share = sizes / len(rows) * count
    quota = np.minimum(sizes, np.maximum(least, np.round(share).astype(int)))

    # Rounding: a row more for the class that is most below its share, a row less for the one most above
    while quota.sum() < count:
        quota[np.where(quota < sizes, share - quota, -np.inf).argmax()] += 1
    while quota.sum() > count:
        quota[np.where(quota > least, quota - share, -np.inf).argmax()] -= 1

    taken = [shuffled[labels[shuffled] == one][:number] for one, number in zip(classes, quota, strict=True)]
    return np.sort(np.concatenate(taken))


# ---- held-out text


def outside_ids(tokenizer: PreTrainedTokenizerBase) -> list:
    """The ids of [CLS], [SEP] and [PAD], which are no part of a text."""
    return [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]


class MaskedExample(NamedTuple):
    """One example as a masked language model sees it. Arrays of length L."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    labels: np.ndarray  # the token to predict, −100 elsewhere
    next_sentence_label: int

    def original(self) -> np.ndarray:
        """(L,) the tokens as they were before masking."""
        return np.where(self.labels == IGNORE_INDEX, self.input_ids, self.labels)


@dataclass
class HeldOutText:
    """Masked examples of a text, with the text's token frequencies.

    Attributes:
        counts: (V,) how often each token occurs in the text.
        characters_per_token: of the text, spaces included; None where it is not known.
        pairs: whether an example is a sentence pair.
    """

    examples: list[MaskedExample]
    counts: np.ndarray
    characters_per_token: float | None
    pairs: bool


NO_TEXT = HeldOutText([], np.zeros(0, np.int64), None, pairs=False)


def read_held_out(probe_args: ProbeArguments, tokenizer: PreTrainedTokenizerBase) -> HeldOutText:
    """Examples of `--validation_file`: the pairs and masks on which `pretrain.py` evaluates the same text, where its
    other options of text and examples have their defaults.

    Raises:
        InputError: the text cannot be read.
    """
    corpus_args = CorpusArguments(
        cache_dir=probe_args.cache_dir, text_column=probe_args.validation_text_column, language=probe_args.language
    )
    try:
        corpus = load_or_prepare_corpus(corpus_args, tokenizer, probe_args.validation_file)
    except InputError as error:  # here --text_column is that of the labelled rows
        remedy = error.remedy.replace("--text_column", "--validation_text_column")
        raise dataclasses.replace(error, remedy=remedy) from None
    window = corpus.window(corpus.windows()[0])
    pairs = len(window) > 1 and bool((window.sentences > 1).any())
    examples = PreTrainingExamples(
        corpus,
        (Phase(probe_args.max_seq_length, None),),
        nsp=pairs,
        seed=0,
        fixed=True,
        limit=probe_args.max_eval_samples,
    )

    collator = DataCollatorForPreTraining(tokenizer, nsp=pairs)
    masked = [
        MaskedExample(**collator.example(feature), next_sentence_label=feature["next_sentence_label"])
        for feature in map(examples.__getitem__, range(len(examples)))
    ]
    counts = corpus.unigram_counts(len(tokenizer))
    return HeldOutText(masked, counts, _characters_per_token(masked, tokenizer), pairs)


def masked_examples_of(
    task: LabelledTask, tokenizer: PreTrainedTokenizerBase, probe_args: ProbeArguments
) -> HeldOutText:
    """Labelled texts as masked examples, a text each, to compare the task's domain with the held-out text's."""
    collator = DataCollatorForPreTraining(tokenizer, nsp=False)
    ids = tokenizer(task.joined(), add_special_tokens=False)["input_ids"]
    chosen = np.random.default_rng(probe_args.seed).permutation(len(ids))[: probe_args.max_eval_samples]

    masked = []
    for row in chosen.tolist():
        if ids[row]:
            feature = {
                "segment_a": ids[row],
                "segment_b": [],
                "max_seq_length": probe_args.max_seq_length,
                "number": ExampleNumber(0, 0, 0, row),
                "seed": 0,
            }
            masked.append(MaskedExample(**collator.example(feature), next_sentence_label=0))

    counts = np.bincount([token for row in ids for token in row], minlength=len(tokenizer))
    return HeldOutText(masked, counts, _characters_per_token(masked, tokenizer), False)


def _characters_per_token(examples: list[MaskedExample], tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Characters of the normalised text for each token of the examples.

    One space a word counts, and [UNK] as one character, so that the same words have the same number of characters
    under every vocabulary of the same normalisation.
    """
    lengths = np.zeros(max(tokenizer.get_vocab().values()) + 1)
    for piece, index in tokenizer.get_vocab().items():
        lengths[index] = len(piece) - 2 if piece.startswith("##") else len(piece) + 1
    lengths[cast(int, tokenizer.unk_token_id)] = 2
    outside = outside_ids(tokenizer)
    lengths[outside] = 0

    originals = [example.original() for example in examples]
    tokens = np.concatenate(originals) if originals else np.zeros(0, np.int64)
    inside = ~np.isin(tokens, outside)
    return float(lengths[tokens].sum() / inside.sum()) if inside.any() else None


# ---- minimal pairs


class MinimalPair(NamedTuple):
    """Two sentences, of which one is grammatical."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_minimal_pairs(files: list[str], most: int, seed: int) -> list[MinimalPair]:
    """At most `most` pairs of each paradigm, a random sample, from JSON lines as BLiMP ships them.

    Keys: `sentence_good`, `sentence_bad`; `UID` names the paradigm, `linguistics_term` (else `field`) the phenomenon.

    Raises:
        InputError: a line lacks a sentence, or there are none.
    """
    by_paradigm: dict[str, list[MinimalPair]] = defaultdict(list)
    for path in expand(files):
        for line, row in read_rows(path):
            good, bad = row.get("sentence_good"), row.get("sentence_bad")
            if not all(isinstance(sentence, str) and sentence.strip() for sentence in (good, bad)):
                remedy = "give sentence_good and sentence_bad, both text"
                raise InputError("no minimal pair", where=path, line=line, remedy=remedy)

            paradigm = str(row.get("UID") or Path(path).name)
            phenomenon = str(row.get("linguistics_term") or row.get("field") or paradigm)
            by_paradigm[paradigm].append(
                MinimalPair(whole_text(str(good)), whole_text(str(bad)), paradigm, phenomenon)
            )

    if files and not by_paradigm:
        raise InputError("no minimal pairs in it", where=files[0], remedy="give sentence_good and sentence_bad")

    rng = np.random.default_rng(seed)
    chosen = []
    for paradigm in sorted(by_paradigm):
        pairs = by_paradigm[paradigm]
        chosen += [pairs[number] for number in np.sort(rng.permutation(len(pairs))[:most])]
    return chosen


# ---- all of it


class ProbeData(NamedTuple):
    """All data of a probe; data that no part needs are empty."""

    tasks: list[LabelledTask]
    held_out: HeldOutText
    pairs: list[MinimalPair]


def read_data(probe_args: ProbeArguments, tokenizer: PreTrainedTokenizerBase) -> ProbeData:
    """Reads all data before anything is computed, so that a bad line is found in the first seconds.

    Raises:
        InputError: see the readers.
    """
    parts = set(probe_args.chosen_parts())
    tasks = read_tasks(probe_args)
    wants_text = probe_args.validation_file and (parts & {"mlm", "nsp"} or ("geometry" in parts and not tasks))
    held_out = read_held_out(probe_args, tokenizer) if wants_text else NO_TEXT
    files = probe_args.blimp if "grammar" in parts else None
    pairs = read_minimal_pairs(files or [], probe_args.max_pairs, probe_args.seed)
    return ProbeData(tasks, held_out, pairs)
