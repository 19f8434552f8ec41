#!/usr/bin/env bash
# A search on the nodes of a Slurm job: Ray's head and the driver on the first, workers on the others.
#
#   sbatch clusters/slurm.sh search model=Qwen/Qwen3-8B model.dtype=bfloat16 data=wikitext2 remove=7
#
# Submit it from a checkout after `make install`, on a file system that all nodes share; the store is there too. Shortly before
# its time limit, and if a lost node ends it, the job is requeued and continues.
# Change the nodes, the GPUs and the time; VENV sets another environment, STORE another folder for the results.
#SBATCH --job-name=raysearch
#SBATCH --dependency=singleton
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail

# shellcheck source=/dev/null
source "${VENV:-$SLURM_SUBMIT_DIR/.venv}/bin/activate"
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed --quiet 1p) # sed reads all lines, because scontrol fails on a closed pipe
address=$(hostname --ip-address | cut --delimiter=' ' --fields=1):$((20000 + SLURM_JOB_ID % 10000)) # nodes may be shared
gpus=${SLURM_GPUS_ON_NODE:-0}
node=(--num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="$gpus")
if ((gpus)); then replicas=(cluster.replicas.max=$((SLURM_NNODES * gpus)))
else replicas=(cluster.gpus_per_replica=0 cluster.replicas.max=$((SLURM_NNODES * SLURM_CPUS_PER_TASK))); fi

trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take it from sbatch
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --block --node-ip-address="${address%:*}" --port="${address#*:}" --include-dashboard=false \
  --temp-dir="/tmp/ray-$SLURM_JOB_ID" "${node[@]}" &
until ray health-check --address "$address" >/dev/null 2>&1; do
  kill -0 $! || { echo "Ray's head has ended before it was ready; see above" >&2; exit 1; }
  sleep 1
done
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks-per-node=1 --exclude="$head" \
    ray start --block --address="$address" "${node[@]}" &
fi

raysearch "$@" cluster=elastic cluster.address="$address" "${replicas[@]}" store="${STORE:-$SLURM_SUBMIT_DIR/mlruns}" &
search=$!
# shellcheck disable=SC2317 # called by the trap
requeue() {
  kill -TERM "$search"
  wait "$search" || true
  scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1
wait "$search"
