#!/bin/sh
# A compiler launcher for nvcc: runs "$@", keeps what ptxas says with -v beside the object (OBJECT.ptxas) and prints the
# rest. The report names every kernel with its registers, shared memory, stack and spills.
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.log"
status=$?
grep -E '^ptxas info|bytes stack frame' "$object.log" >"$object.ptxas"
grep -vE '^ptxas info|bytes stack frame' "$object.log" >&2
rm -f "$object.log"
exit "$status"
