"""Open a finished model in the browser: type a text and see what it predicts.

bert-hf demo runs/pretrain-default
bert-hf demo runs/spam --host 0.0.0.0   (other machines reach it, too)

It needs the extra: pip install 'bert-hf[demo]'. What is typed is neither sent elsewhere nor recorded.
"""

import contextlib
import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.checkpoint_arguments import DemoArguments
from bert_hf.config.parser import parse, with_flags
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.demo import check_demo, make_demo


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "model_name_or_path", "model_name_or_path")
    (demo_args,) = parse((DemoArguments,), words, check=check_demo, required=["model_name_or_path"])

    # 1. Model and tokenizer: the head decides what is asked for and shown
    app = make_demo(str(demo_args.model_name_or_path))

    # 2. Serve, until Ctrl-C
    app.launch(server_name=demo_args.host, share=False, quiet=True, prevent_thread_lock=True, footer_links=[])
    with contextlib.suppress(KeyboardInterrupt):
        print(f"demo: {app.local_url} (Ctrl-C ends it)", flush=True)
        app.block_thread()
    return 0


if __name__ == "__main__":
    sys.exit(main())
