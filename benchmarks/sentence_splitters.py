"""Which sentence splitter? Speed, boundaries on hand-written passages, faults on real text.

python benchmarks/sentence_splitters.py [--train_file TEXT.txt|.jsonl[.gz|.xz]]

Splitters that cannot be imported are listed, not needed: pip install sentencex blingfire nltk syntok pysbd spacy
segtok razdel sentence-splitter, in an environment of its own. Every one gets single lines, as `split_sentences` gives
them. One thread, no accelerator, two minutes. Prints three tables, then a JSON line:

1. MB/s of CPU time, in turns (A B A B), median of five; each splitter reads as long a part of the text as takes it
   half a second. Then on one megabyte of the text, the same for all, of 1,000 sentences: short (fewer than three
   words, in a line that was split), ending before the line does in an initial or in an abbreviation that ends no
   sentence (false splits), holding inside a lower-case word of four letters, full stop, space, capitalised word
   (missed splits), longer than 80 words; and of 1,000 lines those whose characters changed. Meant for English.
2. F1 of the inner boundaries of the passages below; in brackets where the splitter claims no rules for the language.
3. Licence, last release, wheels: from pypi.org where it answers, else from what is installed.
"""

import argparse
import functools
import gzip
import importlib.metadata
import json
import lzma
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

# One passage a line; a bar is a boundary (written without spaces around it, a passage has none there).
GOLD = {
    "en": """
Dr. Helen Moss met Mr. Ade at 9.30 a.m. on Tuesday. | They talked for 2.5 hours.
The U.S. Army bought 1,200 tents. | No. 7 leaked at once.
J. R. R. Tolkien and C. S. Lewis were friends. | Both taught at Oxford.
She works for Acme Inc. in St. Louis. | Her brother prefers Boston, Mass., for its winters.
“Is it far?” asked the boy. | “No,” said his aunt, “it's round the corner.”
We waited ... and waited. | Nobody came… | At last we left.
See https://example.org/a.b?c=d.html for details. | Version 3.11.2 is not affected.
He moved to Washington, D.C. | She stayed behind.
The train left at 6 p.m. | The ferry was late.
What now?! | Run! | Don't look back.
The plant (cf. Fig. 3) grows fast. | It flowers in Sept. or Oct., i.e. in autumn.
"Stop here." | The driver did not answer.
He wrote three books (the last in 1998). | (It sold badly.) | Then he retired.
Yahoo! was founded in 1994. | It was large once.
The court ruled in Hart v. Lane. | Gen. Paul Brown Jr. dissented.
It costs $4.99 vs. $5.49 elsewhere. | iPhones are dearer.
""",
    "de": """
Am 3. Oktober 1990 wurde Deutschland vereint. | Der 9. November blieb ein Werktag.
Dr. Anna Weiß wohnt z. B. in Köln. | Ihr Mann arbeitet bei der Fa. Huber.
Das sind ca. 3,5 Mio. Euro. | Wer zahlt das?
Kaiser Wilhelm II. dankte 1918 ab. | Er ging in die Niederlande.
„Kommst du mit?“, fragte sie. | „Nein“, sagte er.
Sie kauft Obst, Gemüse usw. ein. | Am Abend ist alles weg.
Im 19. Jahrhundert wuchs die Stadt. | Das 20. Jahrhundert brachte Krieg.
Vgl. Abb. 4 auf S. 12. | Dort steht der Rest.
Er schwieg … und ging. | Niemand folgte ihm.
Der Zug hält in St. Pölten um 14.30 Uhr. | Danach fährt er nach Wien.
Sie las den Text auf www.beispiel.de/seite.html. | Er gefiel ihr nicht.
J. S. Bach starb 1750 in Leipzig. | Sein Grab liegt in der Thomaskirche.
Halt! | Wer da? | Gib Antwort!
Das Gesetz (Art. 5 Abs. 2 GG) gilt weiter. | Es hat Grenzen.
Um Christi Geburt, d. h. um 1 n. Chr., lebten dort Kelten. | Später kamen die Römer.
„Das ist alles.“ | Dann legte sie auf.
""",
    "fr": """
M. Dupont est arrivé à 9 h 30. | Mme Leroy l'attendait.
Le prix est de 3,50 €. | C'est cher, p. ex. pour un étudiant.
« Où vas-tu ? » demanda-t-elle. | « À Paris », dit-il.
J.-P. Martin et A. Roux ont signé. | Le maire aussi.
Il hésita… puis il sauta. | Personne ne cria.
Voir l'art. 12 du code, p. 45. | Le reste est au chap. 3.
Quelle surprise ! | Qui l'aurait cru ? | Pas moi.
Consultez https://exemple.fr/index.html avant midi. | Le site ferme tôt.
Elle vend des pommes, des poires, etc. | Son frère vend du pain.
Le Dr Morel et le Pr. Blanc opèrent ensemble. | Ils sont d'accord.
La version 2.0.1 est sortie. | Elle corrige deux erreurs.
Né en 52 av. J.-C., il mourut jeune. | On ignore où.
« Tout est fini. » | Puis il raccrocha.
MM. Petit et Grand sont absents. | (Ils sont malades.) | La séance est levée.
Louis IX, dit aussi saint Louis, régna longtemps. | Cf. le tome II.
""",
    "es": """
El Sr. López llegó a las 9.30. | La Sra. Ruiz ya estaba allí.
¿Quién es? | ¡No abras! | Es tarde.
EE. UU. firmó el acuerdo. | Canadá no lo hizo.
La Dra. Vega vive en la Av. Colón, núm. 12. | Trabaja cerca.
—¿Vienes? —preguntó Ana. | —No —dijo él.
Cuesta 3.50 dólares, aprox. tres euros. | Es barato.
«Ya basta». | Luego colgó el teléfono.
J. L. Borges nació en 1899. | Murió en Ginebra.
Compró pan, leche, etc. | Después volvió a casa.
Dudó... y saltó. | Nadie gritó… | Fue rápido.
Véase la pág. 7 del vol. 2. | Allí está la fig. 4.
Visite www.ejemplo.es/guia.pdf hoy. | Es gratis.
Murió en el s. III a. C. en Roma. | Tenía 40 años.
La empresa Sol S.A. cerró en 2009. | Nadie la compró.
El prof. Gil (véase cap. 3) lo niega. | Otros dudan.
""",
    "ru": """
А. С. Пушкин родился в 1799 г. в Москве. | Он умер в 1837 г. | Ему было 37 лет.
В XIX в. город вырос. | Сейчас там живёт 1,5 млн. человек.
— Ты идёшь? — спросила она. | — Нет, — ответил он.
Цена 3.50 руб. за штуку. | Это дорого.
Он купил хлеб, сыр и т. д. | Потом пошёл домой.
Проф. Иванов и д-р Петров спорят. | Оба правы.
Стой! | Кто идёт? | Отвечай!
«Я ухожу», — сказал он. | Дверь закрылась.
Он долго думал… и согласился. | Никто не удивился.
См. рис. 4 на с. 12. | Там всё показано.
Дом стоит на ул. Мира, д. 5, кв. 12. | Лифта нет.
Подробности есть на https://primer.ru/a.html сегодня. | Читайте.
Это случилось в 44 г. до н. э. в Риме. | Шёл март.
Версия 2.0.1 вышла вчера. | Ошибок, напр. утечек, стало меньше.
«Всё кончено!» | Затем он повесил трубку.
""",
    "zh": """
今天天气很好。|我们去公园吧！|你去吗？
他说：“我不去。”|然后他走了。
“你是谁？”她问。|没有人回答。
价格是3.5元。|太贵了！
他想了很久……最后还是走了。|没有人送他。
请看 https://example.cn/a.html 的说明。|那里写得很清楚。
会议在9:30开始；请准时到。|迟到者不得入内。
什么？！|你再说一遍！
他写了三本书（最后一本在1998年出版）。|后来他退休了。
版本2.0.1已经发布。|它修复了两个错误。
《你好，李焕英》是一部电影。|它在2021年上映。
J. K. 罗琳写了《哈利·波特》。|她住在爱丁堡。
“走吧！”他喊道，“天快黑了。”|大家都站了起来。
北京是中国的首都。|上海是最大的城市。|广州在南方。
他低声说：“对不起……”|她没有听见。
""",
    "ja": """
今日は晴れです。|明日は雨でしょう。
「行くよ。」と彼は言った。|誰も答えなかった。
本当ですか？|信じられない！|すごい。
価格は3.5ドルです。|高いですね。
「もう終わりだ。」|そして電話を切った。
彼は考えた……そして飛んだ。|誰も叫ばなかった。
詳しくは https://example.jp/a.html を見てください。|無料です。
モーニング娘。は歌手のグループです。|今も人気があります。
彼は本を三冊書いた（最後は1998年）。|その後引退した。
え！？|何だって？
バージョン2.0.1が出ました。|不具合が二つ直りました。
J. K. ローリングは英国の作家です。|エディンバラに住んでいます。
「どこへ行くの？」と母が聞いた。|「海だよ。」
東京は日本の首都です。|大阪は西にあります。|札幌は北にあります。
会議は9時30分に始まります。|遅れないでください！
""",
    "hi": """
आज मौसम अच्छा है। | हम बाग में जाएँगे। | क्या तुम आओगे?
डॉ. शर्मा ९.३० बजे आए। | वे थके हुए थे।
उसने कहा, “मैं नहीं जाऊँगा।” | फिर वह चला गया।
इसकी कीमत 3.50 रुपये है। | यह महँगा है।
रुको! | कौन है? | जवाब दो!
श्री ए. पी. जे. कलाम वैज्ञानिक थे। | वे राष्ट्रपति भी बने।
वह सोचता रहा… और चल पड़ा। | किसी ने नहीं रोका।
https://udaharan.in/a.html पर पढ़ें। | यह मुफ़्त है।
प्रो. वर्मा और कु. सीता मिले। | बात लंबी चली।
“तुम कौन हो?” उसने पूछा। | कोई उत्तर नहीं मिला।
संस्करण 2.0.1 कल आया। | उसमें दो सुधार हैं।
दिल्ली भारत की राजधानी है। | मुंबई सबसे बड़ा शहर है।
उसने तीन किताबें लिखीं (अंतिम 1998 में)। | फिर वह सेवानिवृत्त हुआ।
यह दोहा प्रसिद्ध है॥ | इसे सब जानते हैं।
ई. पू. 44 में रोम में यह हुआ। | तब मार्च था।
""",
}
NO_END = """Mr Mrs Ms Dr Prof St Mt Ft Gen Col Lt Sgt Capt Maj Cmdr Adm Rev Hon Gov Sen Rep Pres Fr vs v cf viz ca c
e.g i.e No Nos Vol pp Fig Figs Eq al approx""".split()
ABBREVIATION = re.compile(rf"(?:^|[\s(\[“\"'])(?:{'|'.join(map(re.escape, NO_END))}|[A-Z])\.$")
MISSED = re.compile(r"\b[a-z]{4,}[.!?][\"”’')\]]*\s+[\"“‘'(\[]?[A-Z][a-z]+")
BASELINE = re.compile(
    r"[.!?…][\"”’»“)\]]*\s+(?=[\"“„«(¿¡—-]*\s*[^\W\d_a-zа-яёà-öø-ÿß])|[।॥]\s+|[。！？](?![。！？”」』])"
)
ROUNDS, SECONDS, WARM_UP = 5, 0.5, 20_000

Split = Callable[[str], list[str]]


# ---- the splitters: language → function


def build_sentencex(language: str) -> Split:
    import sentencex

    return lambda line: sentencex.segment(language, line) if len(line) > 1 else [line]


def build_blingfire(language: str) -> Split:
    from blingfire import text_to_sentences

    return lambda line: text_to_sentences(line).split("\n")


def build_punkt_data(language: str) -> Split:
    from nltk.tokenize import PunktTokenizer

    names = {"en": "english", "de": "german", "fr": "french", "es": "spanish", "ru": "russian"}
    return PunktTokenizer(names.get(language, "english")).tokenize


def build_punkt_untrained(language: str) -> Split:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer().tokenize


def build_punkt_trained(language: str, lines: list[str]) -> Split:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer(_trained_parameters(tuple(lines))).tokenize


@functools.cache
def _trained_parameters(lines: tuple[str, ...]):
    from nltk.tokenize.punkt import PunktTrainer

    return PunktTrainer("\n".join(lines)).get_params()


def build_syntok(language: str) -> Split:
    from syntok import segmenter

    def split(line: str) -> list[str]:
        starts = [s[0].offset for paragraph in segmenter.process(line) for s in paragraph]
        return [line[a:b] for a, b in zip([0, *starts[1:]], [*starts[1:], len(line)], strict=True)]

    return split


def build_pysbd(language: str) -> Split:
    import pysbd

    return pysbd.Segmenter(language=language, clean=False).segment


def build_spacy(language: str) -> Split:
    import spacy

    try:
        pipeline = spacy.blank(language)
    except ImportError:  # Japanese: the tokenizer needs sudachipy
        pipeline = spacy.blank("xx")
    pipeline.add_pipe("sentencizer")
    return lambda line: [sentence.text for sentence in pipeline(line).sents]


def build_segtok(language: str) -> Split:
    from segtok.segmenter import split_single

    return lambda line: list(split_single(line))


def build_razdel(language: str) -> Split:
    from razdel import sentenize

    return lambda line: [sentence.text for sentence in sentenize(line)]


def build_moses(language: str) -> Split:
    from sentence_splitter import SentenceSplitter

    return SentenceSplitter(language=language if language in ("en", "de", "fr", "es", "ru") else "en").split


def build_baseline(language: str) -> Split:
    def split(line: str) -> list[str]:
        ends = [match.end() for match in BASELINE.finditer(line)]
        return [line[a:b] for a, b in zip([0, *ends], [*ends, len(line)], strict=True)]

    return split


@dataclass(frozen=True)
class Splitter:
    name: str
    package: str | None
    build: Callable[[str], Split]
    rules: str  # gold languages it claims
    languages: str  # as its documentation counts them


def splitters(training: list[str]) -> list[Splitter]:
    """All of them; `training`: the lines on which the self-trained Punkt learns."""
    everything = " ".join(GOLD)
    trained = functools.partial(build_punkt_trained, lines=training)
    return [
        Splitter("sentencex", "sentencex", build_sentencex, everything, "~300, most by fallback"),
        Splitter("blingfire", "blingfire", build_blingfire, everything, "one model for all"),
        Splitter("nltk punkt, its data", "nltk", build_punkt_data, "en de fr es ru", "19; data apart"),
        Splitter("nltk punkt, untrained", "nltk", build_punkt_untrained, "", "none"),
        Splitter("nltk punkt, this text", "nltk", trained, "en", "that of the text"),
        Splitter("syntok", "syntok", build_syntok, "en de es", "en de es"),
        Splitter("pysbd", "pysbd", build_pysbd, everything, "23"),
        Splitter("spacy sentencizer", "spacy", build_spacy, "en de fr es ru zh hi", "any; ja: sudachipy"),
        Splitter("segtok", "segtok", build_segtok, "en de es", "en de es"),
        Splitter("razdel", "razdel", build_razdel, "ru", "ru"),
        Splitter("sentence-splitter", "sentence-splitter", build_moses, "en de fr es ru", "24 (Moses)"),
        Splitter("one regular expression", None, build_baseline, everything, "in this file"),
    ]


# ---- the text


def read_texts(path: Path) -> Iterator[str]:
    """The texts of a plain file (one a line) or of a JSON-lines file (`text`), packed or not."""
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"] if ".jsonl" in path.suffixes else line


def default_texts() -> Iterable[str]:
    from bert_hf.sources import default_documents

    return default_documents()


def load_lines(train_file: str | None) -> list[str]:
    texts = read_texts(Path(train_file)) if train_file else default_texts()
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


def first_bytes(lines: list[str], size: float) -> list[str]:
    """The first lines that make up `size` bytes, at least one."""
    ends = accumulate(len(line.encode()) for line in lines)
    return lines[: 1 + sum(end < size for end in ends)]


# ---- speed


def seconds(split: Split, lines: list[str]) -> float:
    start = time.process_time()
    for line in lines:
        split(line)
    return max(time.process_time() - start, 1e-6)


def speeds(ready: dict[str, Split], lines: list[str]) -> dict[str, dict]:
    """MB in a second of CPU time of each, measured in turns."""
    warm = first_bytes(lines, WARM_UP)
    parts, times = {}, {name: [] for name in ready}
    for name, split in ready.items():
        rate = size_of(warm) / min(seconds(split, warm) for _ in range(2))
        parts[name] = first_bytes(lines, rate * SECONDS)
    for _ in range(ROUNDS):
        for name, split in ready.items():
            times[name].append(seconds(split, parts[name]))
    return {
        name: {
            "mb_s": size_of(parts[name]) / 1e6 / statistics.median(taken),
            "mb_s_rounds": [round(size_of(parts[name]) / 1e6 / t, 3) for t in taken],
            "mb_timed": round(size_of(parts[name]) / 1e6, 3),
        }
        for name, taken in times.items()
    }


def size_of(lines: list[str]) -> int:
    return sum(len(line.encode()) for line in lines)


# ---- quality


def squeeze(text: str) -> str:
    return "".join(text.split())


def inner_boundaries(pieces: list[str]) -> set[int]:
    """Where sentences end, counted in characters that are not white space; the end of the text is none."""
    ends = list(accumulate(len(squeeze(piece)) for piece in pieces))
    return set(ends) - {0, ends[-1]} if ends else set()


def passages(language: str) -> Iterator[tuple[str, list[str]]]:
    """(text, its sentences) of each gold passage."""
    for line in GOLD[language].strip().splitlines():
        yield line.replace(" | ", " ").replace("|", ""), line.split("|")


def score(split: Split, language: str) -> dict:
    """F1 of the inner boundaries, and the passages that went wrong."""
    hits = found = wanted = 0
    wrong = []
    for text, sentences in passages(language):
        pieces = split(text)
        ours, gold = inner_boundaries(pieces), inner_boundaries(sentences)
        hits, found, wanted = hits + len(ours & gold), found + len(ours), wanted + len(gold)
        if ours != gold:
            wrong.append("|".join(pieces))
    return {"f1": 2 * hits / (found + wanted), "extra": found - hits, "missed": wanted - hits, "wrong": wrong}


def faults(split: Split, lines: list[str]) -> dict:
    """What can be counted on text nobody annotated."""
    words = sentences = short = false = long = missed = changed = 0
    for line in lines:
        pieces = [piece.strip() for piece in split(line) if piece.strip()]
        changed += squeeze("".join(pieces)) != squeeze(line)
        for number, piece in enumerate(pieces):
            length = len(piece.split())
            short += len(pieces) > 1 and length < 3
            false += number < len(pieces) - 1 and bool(ABBREVIATION.search(piece))
            missed += bool(MISSED.search(piece))
            long += length > 80
            words, sentences = words + length, sentences + 1
    return {
        "sentences_per_1000_words": 1000 * sentences / words,
        "short": 1000 * short / sentences,
        "after_abbreviation": 1000 * false / sentences,
        "missed": 1000 * missed / sentences,
        "over_80_words": 1000 * long / sentences,
        "changed": 1000 * changed / len(lines),
    }


# ---- facts


@functools.cache
def pypi(package: str) -> dict | None:
    try:
        with urllib.request.urlopen(f"https://pypi.org/pypi/{package}/json", timeout=3) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def facts(package: str | None) -> dict:
    """Licence, last release and its wheels."""
    if package is None:
        return {"licence": "", "release": "", "wheels": "", "from": "this file"}
    answer = pypi(package)
    if answer:
        wheels = [entry["filename"] for entry in answer["urls"] if entry["packagetype"] == "bdist_wheel"]
        dates = [entry["upload_time"][:10] for entry in answer["urls"]]
        release = f"{answer['info']['version']} ({min(dates, default='?')})"
        info = {"License-Expression": answer["info"].get("license_expression"), "License": answer["info"]["license"]}
        found = licence(info, answer["info"]["classifiers"])
        return {"licence": found, "release": release, "wheels": platforms(wheels, package), "from": "pypi.org"}
    return installed_facts(package)


def installed_facts(package: str) -> dict:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return {"licence": "?", "release": "?", "wheels": "?", "from": "nowhere"}
    meta = distribution.metadata
    tags = re.findall(r"^Tag: (.+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    found = licence(meta, meta.get_all("Classifier") or [])
    release = f"{distribution.version} (installed)"
    wheels = platforms([f"{tag}.whl" for tag in tags], package)
    return {"licence": found, "release": release, "wheels": wheels, "from": "what is installed"}


def licence(meta, classifiers: list[str]) -> str:
    names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License ::")]
    return (meta.get("License-Expression") or ", ".join(names) or meta.get("License") or "?").splitlines()[0][:60]


def platforms(wheels: list[str], package: str) -> str:
    """The systems that have a wheel; of one for all systems, whether it is Python only."""
    if not wheels:
        return "source only"
    if any("-none-any" in name for name in wheels):
        return "one, with binaries" if has_binaries(package) else "pure Python"
    systems = {"manylinux": "Linux", "musllinux": "musl", "macosx": "macOS", "win": "Windows"}
    found = [label for tag, label in systems.items() if any(f"-{tag}" in name or f".{tag}" in name for name in wheels)]
    arm = "; ARM" if any("aarch64" in name or "arm64" in name for name in wheels) else ""
    return f"{', '.join(found)}{arm}"


def has_binaries(package: str) -> bool:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(file.suffix in (".so", ".dll", ".dylib") for file in files)


# ---- the report


def build_all(choices: list[Splitter]) -> tuple[dict[str, Split], dict[str, str]]:
    """(those that load, for English; why the others do not)."""
    ready, missing = {}, {}
    for choice in choices:
        try:
            ready[choice.name] = choice.build("en")
        except ImportError as error:
            missing[choice.name] = f"not installed ({error.name})"
        except LookupError:
            missing[choice.name] = "needs a download (punkt_tab)"
    return ready, missing


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()


def report(choices: list[Splitter], results: dict[str, dict], missing: dict[str, str]) -> None:
    ready = [choice for choice in choices if choice.name in results]
    rows = []
    for choice in ready:
        r = results[choice.name]
        names = ["short", "after_abbreviation", "missed", "over_80_words", "changed"]
        rows.append([choice.name, f"{r['mb_s']:.3g}", *(f"{r[n]:.1f}" for n in ["sentences_per_1000_words", *names])])
    head = ["", "MB/s", "sentences / 1,000 words", "short, ‰", "after abbreviation, ‰", "missed, ‰", "> 80 words, ‰"]
    print_table([*head, "lines changed, ‰"], rows)
    cell = {c.name: {k: f"{100 * v['f1']:.0f}" for k, v in results[c.name]["gold"].items()} for c in ready}
    mark = {c.name: [t if k in c.rules else f"({t})" for k, t in cell[c.name].items()] for c in ready}
    mean = {c.name: statistics.mean(v["f1"] for v in results[c.name]["gold"].values()) for c in ready}
    print_table(["F1, %", *GOLD, "mean"], [[c.name, *mark[c.name], f"{100 * mean[c.name]:.0f}"] for c in ready])
    rows = []
    for choice in choices:
        known = facts(choice.package)
        row = [choice.name, known["licence"], known["release"], known["wheels"], choice.languages]
        rows.append([*row, missing.get(choice.name, "measured")])
    print_table(["", "licence", "last release", "wheels", "languages", "here"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train_file", help="text; default: the embedded corpus")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of it for the count of faults")
    parser.add_argument("--show", help="print what this splitter did to the gold passages it got wrong")
    arguments = parser.parse_args()
    start = time.perf_counter()
    lines = load_lines(arguments.train_file)
    sample = first_bytes(lines, 1e6 * arguments.megabytes)
    choices = splitters(sample)
    ready, missing = build_all(choices)
    results = speeds(ready, lines)
    for choice in choices:
        if choice.name in ready:
            results[choice.name] |= faults(ready[choice.name], sample)
            results[choice.name]["gold"] = {k: score(choice.build(k), k) for k in GOLD}
    if arguments.show:
        for language, gold in results[arguments.show]["gold"].items():
            print(language, *gold["wrong"], sep="\n  ")
        return
    report(choices, results, missing)
    summary = {"python": sys.version.split()[0], "train_file": arguments.train_file, "mb": size_of(lines) / 1e6}
    summary["seconds"] = time.perf_counter() - start
    for result in results.values():
        result["gold"] = {k: {n: v for n, v in gold.items() if n != "wrong"} for k, gold in result["gold"].items()}
        result |= {k: round(v, 3) for k, v in result.items() if isinstance(v, float)}
        result["gold"] = {k: {**gold, "f1": round(gold["f1"], 4)} for k, gold in result["gold"].items()}
    print(json.dumps({**summary, "missing": missing, "results": results}, ensure_ascii=False))


if __name__ == "__main__":
    main()
