# fetch.sh SUITE PACKAGE: unpacks the package of that Debian suite into root/ of
# this folder with the libraries it needs, libc too, and puts beside root/ a
# script for each of its programs that starts it with them. apt checks the
# signatures as ever, but keeps its lists here and believes that nothing is
# installed, so it names every library. Lists may be old, as those of a stable
# suite always may: sid's would else expire on a mirror that is a week behind.
set -e
suite=$1 package=$2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || { echo "no $keyring: this needs Debian" >&2; exit 1; }

mkdir -p apt/lists/partial apt/archives/partial root
: >apt/status
echo "deb [signed-by=$keyring target=Packages] http://deb.debian.org/debian $suite main" >apt/sources.list
apt_get() {
	apt-get -q -o Dir::Etc::sourcelist="$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o Dir::State::lists="$PWD/apt/lists" -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt" \
		-o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@"
}
apt_get update -o Acquire::Check-Valid-Until=false -o APT::Update::Error-Mode=any
libraries=$(apt_get -s install "$package" | sed -n 's/^Inst \(lib[^ ]*\|zlib[^ ]*\).*/\1/p')

apt_get download "$package" $libraries
dpkg-deb -x "$package"_*.deb root
for program in root/bin/* root/sbin/* root/usr/bin/* root/usr/sbin/*; do
	[ -x "$program" ] || continue
	cat >"${program##*/}" <<-END
		#!/bin/sh
		root=\${0%/*}/root
		for start in "\$root"/lib/*/ld-linux-*.so.* "\$root"/usr/lib/*/ld-linux-*.so.*; do
			[ -e "\$start" ] && break
		done
		lib=\${start%/*} lib=\${lib#"\$root"} lib=\${lib#/usr}
		exec "\$start" --argv0 "\$0" --library-path "\$root\$lib:\$root/usr\$lib" "\${0%/*}/$program" "\$@"
	END
	chmod 755 "${program##*/}"
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
rm -rf apt ./*.deb
