"""Preparing a corpus: ours compared with `encode_batch_fast`, `datasets.map` and the 2018 script, on the same text.

python benchmarks/corpus_preparation.py --train_file 'wiki/*.jsonl.xz'                # the four rows
python benchmarks/corpus_preparation.py --train_file 'wiki/*.jsonl.xz' --memory       # does memory grow with the text?
python benchmarks/corpus_preparation.py --train_file 'wiki/*.jsonl.xz' --vocabulary   # training a vocabulary

Each row is a new process, with one thread of the Rust tokenizer; the rows take turns, `--repeats` times, and
the median counts. Starting Python and importing is not timed, starting workers is. MB are 10⁶ bytes of UTF-8 text;
the text is in the page cache. Peak memory: of the row's process and its workers, sampled every 50 ms: what each has
for itself, and shared files once (Linux); "before it": after the imports. CPU seconds are those of all processes; on a
busy machine they say more than the clock's. Prints a table, then a JSON line. The rows:

- *encode_batch_fast alone*: on the sentences that ours makes, split beforehand and in memory.
- *ours*: `corpus.prepare`, from the files to the store; one process, then `--num_proc`.
- *datasets.map*: `load_dataset`, a stock fast tokenizer by `map`, a second `map` that cuts the stream of tokens to
  `--max_seq_length`, as run_mlm.py of the transformers examples does; one process, cached as it comes.
- *2018*: BasicTokenizer and WordpieceTokenizer (transformers still ships those of 2018) on the split sentences, then
  `original_2018.create_instances` with ten copies, on the first `--slice_mb`. Its disk is the size that its TFRecords
  would have; writing them is not timed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import psutil

from bert_hf.data.text.encoding import batch_text_pieces, load_encoder, split_sentences
from bert_hf.data.text.input_files import expand_paths, kind_of
from bert_hf.data.text.readers import join_pieces
from bert_hf.data.text.sources import TextFile

SMALL = 20e6  # bytes of text, up to which a run is repeated
EVERY = 0.05  # seconds between two looks at the memory
PREDICTIONS = 20  # a sequence, as the 2018 flags say
READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}  # of `datasets`


@dataclass
class Task:
    """Input of a row, sent to its process as JSON."""

    files: list[str]
    folder: str  # where it may write
    tokenizer: str = ""  # folder
    text_column: str | None = None
    language: str | None = "en"
    num_proc: int = 1
    max_seq_length: int = 128
    slice_bytes: float = 4e6
    vocab_size: int = 8192
    sample_bytes: int = 100_000_000

    def sources(self) -> list[TextFile]:
        return [TextFile(path, self.text_column) for path in self.files]

    def texts(self) -> Iterator[str]:
        return join_pieces(piece for source in self.sources() for piece in source.read())


def size_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def size_on_disk(folder: str | Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob(pattern) if path.is_file())


class Clock:
    """Seconds since it was made: of the wall, and of all cores together for this process and its workers."""

    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), self._cpu()

    @staticmethod
    def _cpu() -> float:
        process = psutil.Process()
        family = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
        return sum(times.user + times.system for times in family)

    def read(self) -> dict:
        return {"seconds": time.perf_counter() - self.wall, "cpu_seconds": self._cpu() - self.cpu}


# ---- the rows: each returns its figures


def encode_batch_fast(task: Task) -> dict:
    """The Rust tokenizer alone, on the sentences of each group of pieces that ours encodes at once."""
    rust, before = load_encoder(Path(task.tokenizer) / "tokenizer.json"), memory()
    pieces = (piece for source in task.sources() for piece in source.read())
    groups = [
        [sentence for piece in group for sentence in split_sentences(piece.text, task.language)]
        for group in batch_text_pieces(pieces)
    ]
    clock, tokens = Clock(), 0
    for sentences in groups:
        tokens += sum(map(len, rust.encode_batch_fast(sentences, add_special_tokens=False)))
    return {**clock.read(), "tokens": tokens, "before": before}


def ours(task: Task) -> dict:
    """From the files to the store."""
    from bert_hf.data.corpus.prepare import prepare
    from bert_hf.data.text.tokenization import load_tokenizer

    tokenizer, before = load_tokenizer(task.tokenizer), memory()
    clock, folder = Clock(), Path(task.folder) / "corpus"
    corpus = prepare(task.sources(), tokenizer, folder, language=task.language, num_proc=task.num_proc)
    return {
        **clock.read(),
        "tokens": corpus.manifest["tokens"],
        "disk": size_on_disk(folder, "*.arrow"),
        "before": before,
    }


def datasets_map(task: Task) -> dict:
    """Tokenize, then concatenate and cut: two maps, each cached."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer, before = AutoTokenizer.from_pretrained(task.tokenizer), memory()
    reader = READERS[kind_of(task.files[0])]
    options = {"sample_by": "paragraph"} if reader == "text" else {}
    clock = Clock()
    raw = datasets.load_dataset(reader, data_files=task.files, cache_dir=task.folder, split="train", **options)
    column = task.text_column or ("text" if "text" in raw.column_names else raw.column_names[0])

    def tokenize(rows: dict) -> dict:
        return tokenizer(rows[column], return_special_tokens_mask=True, verbose=False)

    def cut(rows: dict) -> dict:
        streams = {name: list(chain.from_iterable(lists)) for name, lists in rows.items()}
        whole = range(0, len(streams["input_ids"]) // length * length, length)
        return {name: [stream[at : at + length] for at in whole] for name, stream in streams.items()}

    length = task.max_seq_length
    made = raw.map(tokenize, batched=True, remove_columns=raw.column_names).map(cut, batched=True)
    return {
        **clock.read(),
        "tokens": len(made) * length,
        "disk": sum(Path(file["filename"]).stat().st_size for file in made.cache_files),
        "disk_all": size_on_disk(task.folder),
        "before": before,
    }


def original_2018(task: Task) -> dict:
    """The Python tokenizer of 2018 and ten copies of the pairs, on a slice of the text."""
    from random import Random

    from original_2018 import create_instances
    from transformers import AutoTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

    texts = first_bytes(task.texts(), task.slice_bytes)
    tokenizer = AutoTokenizer.from_pretrained(task.tokenizer)
    split = [split_sentences(text, task.language) for text in texts]
    vocabulary, normalizer = tokenizer.get_vocab(), json.loads(tokenizer.backend_tokenizer.normalizer.__getstate__())
    basic = BasicTokenizer(normalizer["lowercase"], None, normalizer["handle_chinese_chars"])
    pieces = WordpieceTokenizer(vocabulary, tokenizer.unk_token)
    before, clock = memory(), Clock()
    ids = [
        [
            [vocabulary[piece] for word in basic.tokenize(sentence) for piece in pieces.tokenize(word)]
            for sentence in sentences
        ]
        for sentences in split
    ]
    tokenizing = clock.read()["seconds"]
    filled = [[sentence for sentence in document if sentence] for document in ids]
    instances = create_instances(
        [document for document in filled if document],
        vocab_size=len(vocabulary),
        cls_id=tokenizer.cls_token_id,
        sep_id=tokenizer.sep_token_id,
        mask_id=tokenizer.mask_token_id,
        max_seq_length=task.max_seq_length,
        rng=Random(0),
    )
    taken = clock.read()
    rust = tokenizer.backend_tokenizer.encode_batch_fast(list(chain.from_iterable(split)), add_special_tokens=False)
    same = sum(theirs.ids == slow for theirs, slow in zip(rust, chain.from_iterable(ids), strict=True))
    some = instances[:1000]  # they are shuffled
    record = statistics.mean(tfrecord_bytes(instance, task.max_seq_length) for instance in some)
    return {
        **taken,
        "seconds_tokenizing": tokenizing,
        "seconds_pairs": taken["seconds"] - tokenizing,
        "text": size_of(texts),
        "tokens": sum(map(len, chain.from_iterable(ids))),
        "instances": len(instances),
        "disk": round(record * len(instances)),
        "sentences": len(rust),
        "sentences_as_ours": same,
        "before": before,
    }


def first_bytes(texts: Iterable[str], size: float) -> list[str]:
    """The first texts that make up `size` bytes, or all."""
    held: list[str] = []
    taken = 0
    for text in texts:
        held.append(text)
        taken += size_of([text])
        if taken >= size:
            break
    return held


def tfrecord_bytes(instance, max_seq_length: int) -> int:
    """Size of an instance as the 2018 script writes it: seven padded features in a tf.train.Example, in a record.

    Protocol buffers write a whole number in groups of seven bits, lists of numbers packed, anything else behind its
    tag and length; a TFRecord adds 16 bytes of length and checksums.
    """
    length, masked = len(instance.tokens), len(instance.masked_labels)

    def varints(values: list[int], padded_to: int) -> int:
        return padded_to - len(values) + sum(map(varint, values))

    payload = {
        "input_ids": varints(instance.tokens, max_seq_length),
        "input_mask": varints([1] * length, max_seq_length),
        "segment_ids": varints(instance.segment_ids, max_seq_length),
        "masked_lm_positions": varints(instance.masked_positions, PREDICTIONS),
        "masked_lm_ids": varints(instance.masked_labels, PREDICTIONS),
        "masked_lm_weights": 4 * max(PREDICTIONS, masked),
        "next_sentence_labels": 1,
    }
    # Example > Features > an entry (name, Feature > its list > the numbers) for each of the seven
    entries = (field(field(len(name)) + field(field(field(size)))) for name, size in payload.items())
    return field(sum(entries)) + 16


def varint(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def field(size: int) -> int:
    return 1 + varint(size) + size


def vocabulary(task: Task) -> dict:
    """Like `recipes/train_tokenizer.py`: a bounded sample, then WordPiece training."""
    from bert_hf.data.corpus.requested_corpus import sample_inputs
    from bert_hf.data.text.tokenization import save_tokenizer, train_tokenizer

    before, clock = memory(), Clock()
    texts = [piece.text for piece in sample_inputs(task.sources(), task.sample_bytes)]
    sampling = clock.read()["seconds"]
    tokenizer = train_tokenizer(texts, vocab_size=task.vocab_size)
    taken = clock.read()
    save_tokenizer(tokenizer, Path(task.folder) / "tokenizer")
    return {
        **taken,
        "seconds_sampling": sampling,
        "seconds_training": taken["seconds"] - sampling,
        "sample": size_of(texts),
        "pieces": len(tokenizer),
        "before": before,
    }


ROWS: dict[str, tuple[str, Callable[[Task], dict]]] = {
    "encode_batch_fast": ("encode_batch_fast alone, 1 thread", encode_batch_fast),
    "ours": ("ours, 1 process", ours),
    "ours_n": ("ours, {num_proc} processes", ours),
    "datasets_map": ("datasets.map, 1 process", datasets_map),
    "2018": ("2018, {slice_mb:.0f} MB of it", original_2018),
}
MEASURED = {name: measure for name, (_, measure) in ROWS.items()} | {"vocabulary": vocabulary}


# ---- a process for each


def memory(pid: int | None = None) -> int:
    """Bytes that a process and its children hold: what each has for itself, and files (libraries, maps) once."""
    held, files = [], []
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            info = one.memory_info()
            held.append(info.rss - info.shared)
            files.append(info.shared)
    except psutil.NoSuchProcess:
        pass  # it ended just now
    return sum(held) + max(files, default=0)


def alone(name: str, task: Task, threads: int | None = 1) -> dict:
    """A row's figures, measured in a new process and a new folder; `threads` of the Rust tokenizer (None: all)."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    for variable in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        environment.pop(variable, None)
    if threads:
        environment |= {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    folder = Path(task.folder) / name
    command = [sys.executable, __file__, "--measure", name, json.dumps(asdict(replace(task, folder=str(folder))))]
    folder.mkdir(parents=True)
    try:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment)
            peak = 0
            while process.poll() is None:
                peak = max(peak, memory(process.pid))
                time.sleep(EVERY)
            out.seek(0)
            err.seek(0)
            if process.returncode:
                sys.exit(f"{name}: {err.read()[-3000:]}")
            return {**json.loads(out.read().splitlines()[-1]), "peak": peak}
    finally:
        shutil.rmtree(folder)


# ---- side by side


def side_by_side(task: Task, names: list[str], repeats: int, text_bytes: int) -> dict[str, dict]:
    """{row: its figures, of the run of median time}, the rows in turns."""
    runs: dict[str, list[dict]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            own = task if name == "ours_n" else replace(task, num_proc=1)
            runs[name].append({"text": text_bytes, **alone(name, own)})
    results = {name: sorted(own, key=lambda run: run["seconds"])[len(own) // 2] for name, own in runs.items()}
    for name, result in results.items():
        result["mb_s"] = result["text"] / 1e6 / result["seconds"]
        result["mb_cpu_s"] = result["text"] / 1e6 / result["cpu_seconds"]
        result["tokens_s"] = result["tokens"] / result["seconds"]
        result["seconds_all"] = [run["seconds"] for run in runs[name]]
    return results


def ratios(results: dict[str, dict]) -> dict:
    """Speeds of ours as multiples of the others', by the clock and by CPU time, which a busy machine disturbs less."""

    def over(first: str, second: str, speed: str = "mb_s") -> float | None:
        return results[first][speed] / results[second][speed] if {first, second} <= results.keys() else None

    others = ("encode_batch_fast", "datasets_map", "2018")
    by_clock = {f"ours_over_{other}": over("ours", other) for other in others}
    by_cpu = {f"ours_over_{other}_by_cpu": over("ours", other, "mb_cpu_s") for other in others}
    return {**by_clock, **by_cpu, "scaling": over("ours_n", "ours")}


def report(results: dict[str, dict], task: Task) -> None:
    rows = []
    for name, result in results.items():
        label = ROWS[name][0].format(num_proc=task.num_proc, slice_mb=result["text"] / 1e6)
        disk = result.get("disk")
        cells = [f"{result['text'] / 1e6:.1f}", f"{result['seconds']:.2f}", f"{result['cpu_seconds']:.2f}"]
        cells += [f"{result['mb_s']:.3g}", f"{result['tokens_s'] / 1e6:.3g}"]
        cells += [f"{result['peak'] / 1e6:.0f}", f"{result['before'] / 1e6:.0f}"]
        cells += [f"{disk / 1e6:.1f}", f"{disk / result['tokens']:.2f}"] if disk else ["–", "–"]
        rows.append([label, *cells])
    head = ["", "MB", "s", "CPU s", "MB/s", "million tokens/s", "peak MB", "before it", "MB on disk", "bytes a token"]
    print_table(head, rows)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def compare(task: Task, names: list[str], repeats: int | None) -> dict:
    text_bytes = size_of(task.texts())
    repeats = repeats or (3 if text_bytes <= SMALL else 1)
    results = side_by_side(task, names, repeats, text_bytes)
    tokens = {result["tokens"] for name, result in results.items() if name in ("encode_batch_fast", "ours", "ours_n")}
    if len(tokens) > 1:
        raise AssertionError(f"the same text gave {tokens} tokens")
    report(results, task)
    found = ratios(results)
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items() if value), "\n")
    if "datasets_map" in results:
        print(f"datasets.map left {results['datasets_map']['disk_all'] / 1e6:.0f} MB in its cache, all steps together")
    if theirs := results.get("2018"):
        print(f"2018: {theirs['seconds_tokenizing']:.1f} s of it tokenize, {theirs['seconds_pairs']:.1f} s make "
              f"{theirs['instances']:,} instances; {theirs['sentences_as_ours']:,} of {theirs['sentences']:,} "
              "sentences have the ids of ours")  # fmt: skip
    return {"num_proc": task.num_proc, "repeats": repeats, **found, "rows": results}


# ---- memory


def varied(task: Task, copy: int) -> Iterator[str]:
    """The documents; of each further copy the letters are shifted, so that its words are others."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    shifted = letters[copy % 26 :] + letters[: copy % 26]
    table = str.maketrans(letters + letters.upper(), shifted + shifted.upper())
    return (text.translate(table) if copy else text for text in task.texts())


def write_json_lines(path: Path, texts: Iterable[str]) -> Path:
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return path


def memory_table(task: Task) -> dict:
    """Peak memory of preparing the text, and ten times the text in one file."""
    copies = chain.from_iterable(varied(task, copy) for copy in range(10))
    ten = str(write_json_lines(Path(task.folder) / "copies.jsonl", copies))
    results = []
    for name, own in (("the text", task), ("ten copies", replace(task, files=[ten], text_column=None))):
        text = size_of(own.texts())
        results.append({"name": name, "text": text, **alone("ours", replace(own, num_proc=1))})
    rows = [[r["name"], *(f"{r[key] / 1e6:.0f}" for key in ("text", "peak", "before"))] for r in results]
    print_table(["", "MB", "peak MB", "before it"], rows)
    return {"memory": results}


# ---- vocabulary


def vocabulary_table(task: Task) -> dict:
    text = size_of(task.texts())
    result = {"text": text, **alone("vocabulary", replace(task, vocab_size=30522), threads=None)}
    result["mb_s"] = text / 1e6 / result["seconds"]
    metrics = (text, result["sample"], result["peak"], result["before"])
    times = (result["seconds"], result["seconds_sampling"], result["seconds_training"])
    head = ["MB", "of it sampled", "peak MB", "before it", "s", "sampling", "training", "pieces"]
    cells = [*(f"{value / 1e6:.0f}" for value in metrics), *(f"{value:.1f}" for value in times)]
    print_table(head, [[*cells, f"{result['pieces']:,}"]])
    return {"vocabulary": result}


def trained_tokenizer(task: Task, name: str | None) -> str:
    """The folder of the tokenizer asked for, or of one trained on the first 10 MB."""
    if name:
        return name
    text = write_json_lines(Path(task.folder) / "sample.jsonl", first_bytes(task.texts(), 1e7))
    command = [sys.executable, "recipes/train_tokenizer.py", "--train_file", str(text)]
    command += ["--vocab_size", str(task.vocab_size), "--output_dir", f"{task.folder}/tokenizer"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return f"{task.folder}/tokenizer"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train_file", nargs="+", required=True, help="files or globs that `sources` reads")
    parser.add_argument("--text_column", help="column that holds the text")
    parser.add_argument("--language", default="en", help="for the sentence splitter")
    parser.add_argument("--tokenizer_name", help="folder; default: one is trained on the first 10 MB")
    parser.add_argument("--vocab_size", type=int, default=8192, help="of that one")
    parser.add_argument("--num_proc", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max_seq_length", type=int, default=128, help="of datasets.map and of 2018")
    parser.add_argument("--slice_mb", type=float, default=4.0, help="of the text, for 2018")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--repeats", type=int, help=f"default: 3 up to {SMALL / 1e6:.0f} MB, else 1")
    parser.add_argument("--memory", action="store_true", help="peak memory of preparing ten times the text")
    parser.add_argument("--vocabulary", action="store_true", help="time and memory of training a vocabulary")
    options = parser.parse_args(argv)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            files=expand_paths(options.train_file),
            folder=folder,
            text_column=options.text_column,
            language=options.language,
            num_proc=options.num_proc,
            max_seq_length=options.max_seq_length,
            slice_bytes=1e6 * options.slice_mb,
            vocab_size=options.vocab_size,
        )
        if options.vocabulary:
            result = vocabulary_table(task)
        else:
            task.tokenizer = trained_tokenizer(task, options.tokenizer_name)
            result = memory_table(task) if options.memory else compare(task, options.rows, options.repeats)
    total = time.perf_counter() - begin
    print(json.dumps({"python": sys.version.split()[0], "seconds": total, **result}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:  # the process of one row
        print(json.dumps(MEASURED[sys.argv[2]](Task(**json.loads(sys.argv[3])))))
    else:
        main()
