"""Writes the checkpoints of this folder with TensorFlow's own Saver: `python write.py FOLDER KIND`.

Needs tensorflow-cpu 2.21; the tests read the files alone. A BERT with the variables of google-research/bert: heads,
Adam slots and `global_step`, in two data files; the word embeddings partitioned; in `pretraining`, a weight in float16
and one in bfloat16.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on under mat tree ##s ##ed . , ?".split()
TINY = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}
BASE = TINY | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30522,
}


def variables(config: dict) -> dict[str, tuple[int, ...]]:
    """Name → shape of the variables that run_pretraining.py makes."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (vocabulary, hidden),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], hidden),
        "cls/predictions/output_bias": (vocabulary,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (hidden, hidden), "cls/predictions/transform/dense": (hidden, hidden)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for number in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        dense |= {f"{layer}/attention/self/{name}": (hidden, hidden) for name in ("query", "key", "value")}
        dense[f"{layer}/attention/output/dense"] = (hidden, hidden)
        dense[f"{layer}/intermediate/dense"] = (hidden, inner)
        dense[f"{layer}/output/dense"] = (inner, hidden)
        norms += [f"{layer}/attention/output/LayerNorm", f"{layer}/output/LayerNorm"]

    for name, (rows, columns) in dense.items():
        shapes |= {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}
    for name in norms:
        shapes |= {f"{name}/gamma": (hidden,), f"{name}/beta": (hidden,)}
    return shapes


def main(folder: Path, kind: str) -> None:
    """Writes one checkpoint. kind: pretraining, classification (three classes, no slots) or base (BERT-base)."""
    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    folder.mkdir(parents=True, exist_ok=True)
    config = BASE if kind == "base" else TINY
    shapes = variables(config)
    types = {}
    if kind == "pretraining":
        types = {"bert/pooler/dense/kernel": tf.float16, "bert/encoder/layer_1/output/dense/bias": tf.bfloat16}
    if kind == "classification":
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("cls/")}
        shapes |= {"output_weights": (3, config["hidden_size"]), "output_bias": (3,)}

    random = np.random.default_rng(0)
    for number, (name, shape) in enumerate(shapes.items()):
        values = random.normal(0, 0.02 if kind == "base" else 0.5, shape).astype(np.float32)
        partitioner = tf1.fixed_size_partitioner(2) if name.endswith("word_embeddings") else None
        with tf1.device(f"/cpu:{number % 2}"):
            make = {"dtype": types.get(name, tf.float32), "partitioner": partitioner, "use_resource": False}
            tf1.get_variable(name, shape, initializer=_constant(values), **make)
            for slot in () if kind == "classification" else ("adam_m", "adam_v"):
                tf1.get_variable(f"{name}/{slot}", initializer=np.zeros(shape, np.float32), use_resource=False)
    with tf1.device("/cpu:0"):
        tf1.get_variable("global_step", initializer=np.int64(1000), use_resource=False)

    with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(sharded=True)
        saver.save(session, str(folder / "bert_model.ckpt"), write_meta_graph=False)

    (folder / "checkpoint").unlink()
    (folder / "bert_config.json").write_text(json.dumps(config, indent=2) + "\n")
    words = WORDS + [f"[unused{number}]" for number in range(config["vocab_size"] - len(WORDS))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    if kind == "pretraining":
        _write_expected(folder, list(shapes))


def _write_expected(folder: Path, names: list[str]) -> None:
    """What TensorFlow itself reads from the checkpoint; bfloat16, which numpy cannot save, as float32."""
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    tensors = {name: reader.get_tensor(name) for name in names}
    plain = {
        name: value.astype(np.float32) if value.dtype == tf.bfloat16 else value for name, value in tensors.items()
    }
    np.savez_compressed(folder / "expected.npz", **plain)


def _constant(values: np.ndarray):
    """An initializer that also serves a part of a partitioned variable."""

    def initialize(shape, dtype=None, partition_info=None):
        offset = partition_info.var_offset if partition_info is not None else [0] * values.ndim
        place = tuple(slice(start, start + length) for start, length in zip(offset, shape, strict=True))
        return tf.cast(tf.constant(values[place]), dtype)

    return initialize


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
