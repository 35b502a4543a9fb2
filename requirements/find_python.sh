#!/bin/sh
# Print the first Python on PATH that is 3.11 or newer; nothing if there is none.
for name in python3 python3.13 python3.12 python3.11 python3.14; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$name"
        exit 0
    fi
done
