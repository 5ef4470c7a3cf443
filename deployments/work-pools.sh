#!/usr/bin/env bash
# Creates the work pools that are not there yet: local (processes of the worker) and containers (Docker).
#   deployments/work-pools.sh [local] [containers]
set -euo pipefail

exists() { prefect work-pool inspect "$1" >/dev/null 2>&1; }

for pool in "${@:-local}"; do
  case "$pool" in
    local)
      exists local || prefect work-pool create local --type process
      ;;
    containers)
      # Needs `pip install prefect-docker` where its worker runs: prefect worker start --pool containers
      exists containers ||
        prefect work-pool create containers --type docker --base-job-template "$(dirname "$0")/docker-pool.json"
      ;;
    *)
      echo "unknown work pool '$pool': expected local or containers" >&2
      exit 2
      ;;
  esac
done
