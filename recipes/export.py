"""Export a finished model to ONNX, to serve it without torch: network, tokenizer and labels.

bert-hf export runs/spam --output_dir runs/spam-onnx
bert-hf export runs/ner --output_dir runs/ner-onnx

The exported network is compared with the original first; if their logits differ, nothing is written.
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.checkpoint_arguments import ExportArguments
from bert_hf.config.parser import parse, with_flags
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.onnx_export import ONNX, check_export, export_onnx
from bert_hf.finetuning.predict import load_predictor
from bert_hf.training.output_folder import claim_output_dir


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "model_name_or_path", "model_name_or_path")
    required = ["model_name_or_path", "output_dir"]
    (export_args,) = parse((ExportArguments,), words, check=check_export, required=required)
    folder = claim_output_dir(export_args.output_dir, overwrite=False, ours=(ONNX,))

    # 1. Model and tokenizer
    predictor = load_predictor(str(export_args.model_name_or_path))
    model = predictor.model.cpu()

    # 2. The exported network, compared with the original
    difference = export_onnx(model, predictor.head.tokenizer, folder, predictor.head.length)
    size = (folder / ONNX).stat().st_size
    print(f"exported: {folder / ONNX}, {size / 1e6:.1f} MB; largest difference of a logit {difference:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
