#!/usr/bin/env bash
# Trains on several hosts without a scheduler: the same command on each of them, in the same shared folder.
#
#     HOSTS=2 FIRST_HOST=10.0.0.1 launch/torchrun.sh recipes/pretrain.py \
#         --config configs/pretrain/bert-base-paper.yaml --train_file runs/corpus --output_dir runs/base
#
# HOSTS: how many hosts. FIRST_HOST: name or address of one of them. PORT: a free port there (29500).
# RANKS: ranks on each host (one per GPU).
set -euo pipefail

exec torchrun --nnodes "$HOSTS" --nproc-per-node "${RANKS:-gpu}" \
    --rdzv-backend c10d --rdzv-endpoint "$FIRST_HOST:${PORT:-29500}" --rdzv-id "${RUN_ID:-bert_hf}" "$@"
