#!/bin/sh
# The image's entrypoint. Jobs of the Docker pool are given no credential of the server, which `docker inspect` would
# show: a container that has it keeps it in the volume for its user alone, and one that has none takes it from there.
file="${NIGHTJAR_HOME:-/data}/prefect-auth"
if [ -n "$PREFECT_API_AUTH_STRING" ]; then
  (umask 077 && printf %s "$PREFECT_API_AUTH_STRING" >"$file.$$" && mv "$file.$$" "$file") 2>/dev/null || true
elif [ -r "$file" ]; then
  PREFECT_API_AUTH_STRING="$(cat "$file")"
  export PREFECT_API_AUTH_STRING
fi
exec "$@"
