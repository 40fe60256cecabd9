#!/usr/bin/env bash
# One run of AdaFed's Simulation 2: tools/simulation_2.sh adafed|adafed_weights|fedavg SEED [MNIST_ROOT]
set -euo pipefail
variant=$1 seed=$2 root=${3:-data} out=runs/simulation_2/$1-$2
case $variant in
  adafed) extra=() ;;
  adafed_weights) extra=(--model.init_args.loss CrossEntropy) ;;
  fedavg) extra=(--model.init_args.loss CrossEntropy --federation.strategy FedAvg) ;;
  *) echo "unknown variant '$variant': adafed, adafed_weights or fedavg" >&2; exit 2 ;;
esac
# The thresholds keep glibc from giving memory back and faulting it in again at every step.
export OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296
exec fl-lightning fit --config "$(dirname "$0")/../configs/adafed_mnist.yaml" \
  --data.datamodule.root "$root" --data.datamodule.source mnist --data.partitioner.seed "$seed" \
  --seed_everything "$seed" --federation.seed "$seed" --federation.local.threads 1 \
  --trainer.default_root_dir "$out" --trainer.accelerator cpu \
  --trainer.logger CSVLogger --trainer.logger.save_dir "$out" --trainer.logger.name csv "${extra[@]}"
