#!/bin/sh
# Unpack programs of Debian packages into DIR/bin, for the tests: no root, nothing installed, no service started.
# usage: debian_tools.sh DIR PROGRAM=PACKAGE[,LIBRARY_PACKAGE...] ...
# A PROGRAM may be a header, too: its package is unpacked below DIR/root, for CPATH and LIBRARY_PATH.
# A program that is on PATH already is left alone. One that cannot be had is named, and the exit status is 1.
set -u
dir=$1
shift
mkdir -p "$dir/bin"
missing=

apt_own() {  # apt with lists and cache of its own, so that a user without root has current ones too
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial"
    apt-get -qq -o Dir::State::Lists="$dir/apt/lists" -o Dir::Cache="$dir/apt/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

unpack() {  # unpack PACKAGE: download and unpack one package below $dir/root
    (cd "$dir" && rm -f ./*.deb && apt_own download "$1" && dpkg-deb -x ./*.deb root && rm -f ./*.deb)
}

for wanted in "$@"; do
    program=${wanted%%=*}
    if command -v "$program" >/dev/null || [ -x "$dir/bin/$program" ]; then
        continue
    fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        missing="$missing $program"
        continue
    fi
    [ -d "$dir/apt/lists" ] || apt_own update || true
    for package in $(echo "${wanted#*=}" | tr , ' '); do
        unpack "$package" 2>/dev/null || { missing="$missing $program" && continue 2; }
    done
    found=$(find "$dir/root" -type f -name "$program" -perm -u+x 2>/dev/null | head -n 1)
    [ -n "$found" ] || continue
    libraries=$(find "$dir/root" -name '*.so*' -exec dirname {} + | sort -u | paste -sd:)
    {
        echo '#!/bin/sh'
        [ -z "$libraries" ] || echo "export LD_LIBRARY_PATH=\"$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\""
        echo "exec \"$found\" \"\$@\""
    } >"$dir/bin/$program"
    chmod +x "$dir/bin/$program"
done

if [ -n "$missing" ]; then
    echo "not found and not to be had here:$missing (tests that need them are skipped and say so)" >&2
    exit 1
fi
