# shellcheck shell=bash
# An empty Debian in a folder, and commands in it: sourced by the scripts beside this file. Needs root and debootstrap.

# make_debian SUITE FOLDER: the release of this name ("bookworm"), of nothing but what every Debian has. Packages come from where
# this machine's apt has its own.
make_debian() {
  local suite=$1 folder=$2 from
  mkdir -p "$(dirname "$folder")"
  from=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
  debootstrap --variant=minbase "$suite" "$folder" "$from" >"$folder.log" || { tail "$folder.log" && false; }
  if [[ $suite == "$VERSION_CODENAME" ]]; then
    rm -rf "$folder"/etc/apt/sources.list*
    cp -r /etc/apt/sources.list* "$folder/etc/apt/"
  fi
  apt-config dump Acquire | grep -E '^Acquire::(https?|Check-)' >"$folder/etc/apt/apt.conf.d/acquire" || true
  inside "$folder" apt-get -qq update
}

# inside FOLDER COMMAND...: in a mount namespace of its own. Whatever ends the command, no mount is left.
inside() {
  unshare --mount bash -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' "$@"
}

# What making one lacks here, a line each.
debian_lacks() {
  [[ ${VERSION_CODENAME-} && -n $(type -P apt-get) ]] || echo "Debian as this system"
  ((EUID == 0)) || echo "root"
  [[ -n $(type -P debootstrap) ]] || echo "debootstrap"
}

. /etc/os-release
