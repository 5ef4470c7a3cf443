#!/usr/bin/env bash
# The whole of it on this machine, on loopback: `make ui` and `make deploy` call this.
#   deployments/local.sh ui       a Prefect server with its UI
#   deployments/local.sh deploy   the server, the work pool, the deployments of prefect.yaml, a worker for them and the watch
#   deployments/local.sh worker   the server, the work pool, the watch, and a worker for what `nightjar deploy` registered
#   deployments/local.sh stop     the watch, the worker and the server
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
home="${NIGHTJAR_HOME:-$PWD/.nightjar}"
export DO_NOT_TRACK=1

use_server() {
  # Whatever PREFECT_API_URL names, else the project's own server, with its credential.
  [ -n "${PREFECT_API_URL:-}" ] || python -m flows.server start
  local exports
  exports="$(python -m flows.server env)"
  eval "$exports"
}

# runs NAME WORDS: whether the process of NAME.pid lives and is what WORDS say.
runs() {
  [ -f "$home/$1.pid" ] && kill -0 "$(cat "$home/$1.pid")" 2>/dev/null &&
    tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$home/$1.pid")/cmdline" | grep -q "$2"
}

worker_runs() { runs worker "worker start"; }
watch_runs() { runs watch "flows.watch"; }

# What an environment says of the server, its credential, and this program's own settings.
settings_in() { tr '\0\n' '\n\r' | grep -E '^(PREFECT_API_(URL|AUTH_STRING)|NIGHTJAR_[^=]+)=.' | sort; }

# Names of the settings that the worker has otherwise than this call: their values may let people in.
other_settings() {
  comm -3 <(settings_in <"/proc/$(cat "$home/worker.pid")/environ") <(env -0 | settings_in) | sed 's/^\t//; s/=.*//' | sort -u | paste -sd ' '
}

start_worker() {
  local others
  if worker_runs && others="$(other_settings)" && [ -n "$others" ]; then
    echo "replacing the running worker, whose settings differ ($others)"
    stop_worker
  fi
  if worker_runs; then
    echo "worker of the pool 'local' is running (process $(cat "$home/worker.pid"))"
    return
  fi
  mkdir -p "$home"
  # A session of its own: it outlives this shell, and Ctrl-C here does not end it. A shell starts what is in its background
  # with SIGINT ignored, and a worker that is told to end interrupts itself.
  setsid env --default-signal=INT prefect worker start --pool local --name "$(hostname)" >>"$home/worker.log" 2>&1 </dev/null &
  echo $! >"$home/worker.pid"
  # A moment passes before the process is the worker, and one that can't start ends soon.
  for _ in $(seq 100); do
    worker_runs && break
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  worker_runs || { echo "the worker did not start; the end of $home/worker.log:"; tail -n 5 "$home/worker.log"; exit 1; } >&2
  echo "worker of the pool 'local' started (process $!, log $home/worker.log)"
}

# Anew each time: it asks the server of now, with the code of now.
start_watch() {
  stop_watch
  setsid python -m flows.watch >>"$home/watch.log" 2>&1 </dev/null &
  echo $! >"$home/watch.pid"
  echo "watch started (process $!, log $home/watch.log)"
}

stop_watch() {
  ! watch_runs || kill -TERM "$(cat "$home/watch.pid")"
  rm -f "$home/watch.pid"
}

# runs_of PROCESS...: those that are runs of flows.
runs_of() {
  for process in "$@"; do
    ! grep -qz '^PREFECT__FLOW_RUN_ID=' "/proc/$process/environ" 2>/dev/null || echo "$process"
  done
}

stop_worker() {
  if worker_runs; then
    pid="$(cat "$home/worker.pid")"
    children="$(cat "/proc/$pid/task/"*/children 2>/dev/null || true)"
    kill -TERM "$pid"
    # It ends its runs first: a server that is gone before would keep them Running for ever.
    for _ in $(seq 600); do
      worker_runs || break
      sleep 0.1
    done
    if worker_runs; then
      kill -KILL "$pid"
      echo "worker killed: it did not end within a minute"
    else
      echo "worker stopped"
    fi
    # A run that it leaves would go on asking without anybody who can stop it.
    for run in $(runs_of $children); do
      kill -KILL "$run" 2>/dev/null && echo "a run of it killed (process $run)"
    done
  fi
  rm -f "$home/worker.pid"
}

case "${1:-}" in
  ui)
    use_server
    ;;
  deploy)
    use_server
    deployments/work-pools.sh local
    prefect --no-prompt deploy --all
    python deployments/automations.py
    start_worker
    start_watch
    echo "start a night now: eval \"\$(.venv/bin/python -m flows.server env)\" && .venv/bin/prefect deployment run suite/nightly"
    ;;
  worker)
    use_server
    deployments/work-pools.sh local
    start_worker
    start_watch
    ;;
  stop)
    stop_watch
    stop_worker
    python -m flows.server stop
    ;;
  *)
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
