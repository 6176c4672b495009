"""What a published encoder is worth with few labels beside the checkpoint of `make pretrain`: `worth.py`, as it is.

python benchmarks/published_encoder.py --model_name_or_path all-MiniLM-L6-v2 --train_file train.tsv --test_file dev.tsv
"""

import sys

from worth import main

if __name__ == "__main__":
    sys.exit(main())
