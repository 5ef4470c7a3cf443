#!/usr/bin/env bash
# Creates the work pools that are not there yet: local (processes of the worker), containers (Docker), kubernetes.
#   deployments/work-pools.sh [local] [containers] [kubernetes]
set -euo pipefail

exists() { prefect work-pool inspect "$1" >/dev/null 2>&1; }

for pool in "${@:-local}"; do
  case "$pool" in
    local)
      exists local || prefect work-pool create local --type process
      ;;
    containers)
      # Its worker needs prefect-docker, which the image has: prefect worker start --pool containers
      exists containers ||
        prefect work-pool create containers --type docker --base-job-template "$(dirname "$0")/docker-pool.json"
      ;;
    kubernetes)
      # Its worker is in deployments/kubernetes.yaml.
      exists kubernetes ||
        prefect work-pool create kubernetes --type kubernetes \
          --base-job-template "$(dirname "$0")/kubernetes-pool.json"
      ;;
    *)
      echo "unknown work pool '$pool': expected local, containers or kubernetes" >&2
      exit 2
      ;;
  esac
done
