#!/bin/sh
# Adds the versions of Slurm of other Debian releases beside the installed one, for the tests.
#
#     sh tests/install_slurms.sh [FOLDER [RELEASE...]]
#
# Each version is unpacked into FOLDER/VERSION with its libraries, so that nothing else on this machine
# changes and no rights are needed. The version of an unreleased Debian changes: the script prints it.
set -eu

into=${1:-.slurms}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- trixie forky # Debian 13 and 14

for program in apt-get dpkg-deb patchelf; do
    if ! command -v "$program" >/dev/null; then
        echo "missing: $program. The other versions of Slurm are taken from Debian's packages;" >&2
        echo "on Debian, \`make slurm\` installs what is missing." >&2
        exit 1
    fi
done
# apt's own variables
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' |
    sed -n 's/ Debian Debian$//p' | head -n 1)
if [ -z "$mirror" ]; then
    echo "apt knows no mirror of Debian: add one to its sources, and run \`apt-get update\`" >&2
    exit 1
fi
mkdir -p "$into"
into=$(cd "$into" && pwd)

download() { # a release's packages with their dependencies, into $work/archives
    mkdir -p "$work/lists/partial" "$work/archives/partial"
    : >"$work/status" # no package counts as installed
    # Debian signs a release with the keys of the one before, too.
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" \
        >"$work/sources.list"
    apt="apt-get -q -y -o Dir::State::lists=$work/lists -o Dir::State::status=$work/status
        -o Dir::Cache=$work -o Dir::Etc::sourcelist=$work/sources.list
        -o Dir::Etc::sourceparts=- -o Dir::Etc::parts=- -o Dir::Etc::preferencesparts=-
        -o Acquire::Languages=none -o APT::Sandbox::User="
    if ! { $apt update && $apt --no-install-recommends --download-only install \
        slurmctld slurmd slurm-client; } >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        exit 1
    fi
}

unpack() { # into $work/tree, with the programs under Slurm's own names
    for package in "$work"/archives/slurm*.deb; do
        dpkg-deb --extract "$package" "$work/slurm"
    done
    for package in "$work"/archives/lib*.deb "$work"/archives/zlib*.deb; do
        dpkg-deb --extract "$package" "$work/libraries"
    done
    mkdir -p "$work/tree/bin" "$work/tree/sbin" "$work/tree/lib" "$work/tree/plugins"
    for folder in bin sbin; do
        for program in "$work/slurm/usr/$folder"/*; do
            name=${program##*/}
            [ -L "$program" ] || cp "$program" "$work/tree/$folder/${name%-wlm}"
        done
    done
    cp "$work"/slurm/usr/lib/*/slurm-wlm/*_*.so "$work/tree/plugins"
    cp "$work"/slurm/usr/lib/*/slurm-wlm/libslurm*.so "$work/tree/lib"
    # links first, because a link may have the name of a library in another folder
    for type in l f; do
        find "$work/libraries" -path '*-linux-gnu*' -name '*.so*' -type $type \
            -exec cp -P --remove-destination {} "$work/tree/lib" \;
    done
}

adapt() { # lets the programs of a folder use only its libraries
    loader=$(cd "$1/lib" && ls ld-linux*.so.*)
    for program in "$1"/bin/* "$1"/sbin/*; do
        patchelf --set-interpreter "$1/lib/$loader" --force-rpath --set-rpath "$1/lib" "$program"
    done
    # a path of their own would override that of the program
    for library in "$1"/lib/libslurm*.so "$1"/plugins/*.so; do
        patchelf --remove-rpath "$library"
    done
}

for release; do
    work=$into/.$release
    rm -rf "$work"
    download "$release"
    unpack
    rm -rf "$work/slurm" "$work/libraries"
    package=$(echo "$work"/archives/slurmctld_*.deb)
    version=$(echo "${package##*/slurmctld_}" | cut -d. -f1,2)
    rm -rf "${into:?}/$version"
    mv "$work/tree" "$into/$version"
    adapt "$into/$version"
    rm -rf "$work"
    echo "$("$into/$version/sbin/slurmctld" -V) of $release is in $into/$version"
done
