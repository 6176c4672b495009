"""Reads labelled texts, or pairs of texts, from files, folders and the Hub.

    rows = read_labelled(["comments.csv"])
    print(rows.line())      # text: CONTENT, label: CLASS, 1,956 rows; spam 1,005, ham 951

`tables` reads the files, `columns` finds the columns in them, `long_texts` makes a model's inputs of the rows.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bert_hf.data.text.input_files import expand
from bert_hf.data.text.readers import whole_text
from bert_hf.data.text.sources import load_hub
from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.columns import MISSING, REGRESSION, Columns, NamedColumns, find_columns
from bert_hf.finetuning.labelled.folders import texts_by_folder
from bert_hf.finetuning.labelled.tables import Table, read_table, read_text, table_of_features
from bert_hf.finetuning.labelled.texts import LabelledTexts, join_rows, some

# ---- files


def read_labelled(
    files: list[str],
    named: NamedColumns | None = None,
    encoding: str | None = None,
    like: Columns | None = None,
    needs_labels: bool = True,
) -> LabelledTexts:
    """Reads labelled texts from files and folders of any common kind (see `tables` and `folders`).

    White space at the ends of texts and labels is removed. Rows without a text are left out and counted in `notes`; of
    rows without labels all are kept, so that each gets its prediction.

    Args:
        files: paths, globs, URLs; folders with a subfolder of text files for each class.
        named: the columns that the user named.
        encoding: None: UTF-8, or what the byte-order mark says.
        like: the columns of the training rows, which are those of other files too.
        needs_labels: False: files without labels are accepted.

    Raises:
        InputError: with file and line.
    """
    named = named or NamedColumns()
    read: list[LabelledTexts] = []
    for path in expand(files, folders=True):
        if Path(path).is_dir():
            read.append(_read_folder(Path(path), encoding))
            continue
        rows = _read_file(path, named, encoding, like, needs_labels)
        like = like or rows.columns
        read.append(rows)

    _check_files_agree(read, named.problem_type)
    return join_rows(read)


def read_parts(
    files: dict[str, list[str]], named: NamedColumns | None = None, encoding: str | None = None
) -> dict[str, LabelledTexts]:
    """The rows of `train`, `validation` and `test`, of those that are named; the rows of `test` may have no labels.

    Raises:
        InputError: see `read_labelled`.
    """
    parts: dict[str, LabelledTexts] = {}
    like = None
    for part, paths in files.items():
        parts[part] = read_labelled(paths, named, encoding, like, needs_labels=part != "test")
        like = like or parts[part].columns
    return parts


def _read_file(
    path: str, named: NamedColumns, encoding: str | None, like: Columns | None, needs_labels: bool
) -> LabelledTexts:
    # Names of columns by which a header is recognised; rows to predict may lack the label
    names = named.names() if needs_labels else tuple(name for name in (named.text, named.pair) if name is not None)
    if not names and like is not None and like.header:
        names = (like.text,)
    table = read_table(path, encoding, names)
    if not len(table):
        raise InputError("no rows in it", where=path, remedy="give a file with rows of text and label")
    return _rows_of(table, named, like, needs_labels)


def _read_folder(folder: Path, encoding: str | None) -> LabelledTexts:
    """A text of each file; its label is the name of the subfolder."""
    found, others = texts_by_folder(folder)
    rows = LabelledTexts(
        texts=[read_text(str(path), encoding).strip() for _, path in found],
        labels=[name for name, _ in found],
        places=[(str(path), 1) for _, path in found],
    )
    rows = _without_empty(rows)
    if others:
        rows.notes.append(f"files next to the subfolders, not read: {others:,}")
    return rows


def _check_files_agree(read: list[LabelledTexts], problem_type: str | None) -> None:
    """Refuses to join files whose labels have different names for what may be the same: 0 and 1, ham and spam."""
    if any((rows.pairs is None) != (read[0].pairs is None) for rows in read):
        what = "some of the files hold pairs of texts, and some single texts"
        raise InputError(what, where=read[0].file(), remedy="name --text_column and --text_pair_column")

    labelled = [rows for rows in read if rows.labels is not None and problem_type != REGRESSION]
    for rows in labelled[1:]:
        one, other = set(labelled[0].class_names()), set(rows.class_names())
        fewer = min(len(one), len(other))
        if fewer > 1 and 2 * len(one & other) <= fewer:
            what = f"its labels are {some(sorted(other))}, and those of {labelled[0].file()}: {some(sorted(one))}"
            remedy = "give both the same names, or join the files if all are meant"
            raise InputError(what, where=rows.file(), remedy=remedy)


# ---- rows of a table


def _rows_of(
    table: Table, named: NamedColumns, like: Columns | None, needs_labels: bool, is_file: bool = True
) -> LabelledTexts:
    columns = _columns_of(table, named, like, needs_labels, line=1 if is_file else None)
    rows = LabelledTexts(
        texts=_texts_of(table, columns.text),
        labels=_labels_of(table, columns.label, needs_labels),
        places=[(table.where, line) for line in table.lines] if is_file else [],
        pairs=None if columns.pair is None else _texts_of(table, columns.pair),
        columns=columns,
    )
    if named.problem_type == REGRESSION and rows.labels is not None:
        rows.numbers()
    return _without_empty(rows)


def _columns_of(
    table: Table, named: NamedColumns, like: Columns | None, needs_labels: bool, line: int | None
) -> Columns:
    """The columns of the training rows, where the table has them; else the ones that are named or found."""
    if like is not None and like.header == table.header and like.text in table.columns:
        named = NamedColumns(like.text, like.pair, like.label, named.problem_type)

    searched = table.columns
    if named.label is not None and named.label not in searched and not needs_labels:
        named = NamedColumns(named.text, named.pair, None, named.problem_type)
        if named.text is not None:
            searched = {name: values for name, values in searched.items() if name in named.names()}
    return find_columns(searched, table.where, named, line=line, header=table.header, needs_label=needs_labels)


def _texts_of(table: Table, column: str) -> list[str]:
    """The values of a column without white space at their ends; "" for null."""
    texts = []
    for line, value in zip(table.lines, table.columns[column], strict=True):
        if not isinstance(value, str | None):
            what = f"the row has no text {column!r}"
            raise InputError(what, where=table.where, line=line, remedy="correct or remove it")
        texts.append(whole_text(value or "").strip())
    return texts


def _labels_of(table: Table, column: str | None, needed: bool) -> list[str] | None:
    """The names of the labels; None where no row has one, unless they are needed."""
    if column is None:
        return None
    labels = [_label_name(value) for value in table.columns[column]]
    if not needed and not any(labels):
        return None

    for line, label, value in zip(table.lines, labels, table.columns[column], strict=True):
        if isinstance(value, list | dict):
            what = f"{column!r} is not a name or a number"
            raise InputError(what, where=table.where, line=line, remedy="give each row one label")
        if not label:
            what = f"the row has no {column!r}"
            raise InputError(what, where=table.where, line=line, remedy="label it or remove it")
    return [label or "" for label in labels]


def _label_name(value: object) -> str | None:
    """The name of a label: "1" for 1, 1.0 and " 1"; None for null, NaN and blanks."""
    if value is None or value is MISSING or value != value:  # NaN is not equal to itself
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole_text(str(value)).strip() or None


def _without_empty(rows: LabelledTexts) -> LabelledTexts:
    """The rows that have a text, and both texts of a pair; all of them where they have no labels.

    Raises:
        InputError: no row has a text.
    """
    whole = [row for row, text in enumerate(rows.texts) if text and (rows.pairs is None or rows.pairs[row])]
    empty = len(rows) - len(whole)
    if empty == 0:
        return rows
    if not whole:
        raise InputError("no row has a text", where=rows.file(), remedy="name another --text_column")
    if rows.labels is None:
        return replace(rows, notes=[*rows.notes, f"{empty:,} without a text"])
    return replace(rows.take(whole), notes=[*rows.notes, f"{empty:,} without a text left out"])


# ---- Hub


def read_hub(
    name: str,
    config: str | None = None,
    named: NamedColumns | None = None,
    wanted: Collection[str] = ("train", "validation", "test"),
) -> dict[str, LabelledTexts]:
    """The splits of a Hub dataset; those whose names begin with `test` may have no labels.

    Args:
        wanted: names of the splits that are read, where the dataset has them.

    Raises:
        InputError: it cannot be loaded, has no split `train`, or its columns are not found.
    """
    filled = {split: rows for split, rows in load_hub(name, config).items() if len(rows)}
    splits: dict[str, LabelledTexts] = {}
    like = None

    for split in sorted(filled.keys() & set(wanted), key=lambda split: (split != "train", split)):
        rows = filled[split]
        where = name if split == "train" else f"{name}, {split}"
        table = table_of_features(where, rows.to_dict(), rows.features)
        needs_labels = not split.startswith("test")
        splits[split] = _rows_of(table, named or NamedColumns(), like, needs_labels, is_file=False)
        like = like or splits[split].columns
    return splits
