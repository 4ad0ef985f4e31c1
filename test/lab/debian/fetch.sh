# fetch.sh SUITE PACKAGE: unpacks the package of that Debian suite into root/ of
# this folder with the libraries it needs, libc too, and puts beside root/ a
# script for each of its programs that starts it with them. apt checks the
# signatures as ever, but keeps its lists here and believes that nothing is
# installed, so it names every library. Lists may be old, as those of a stable
# suite always may: sid's would else expire on a mirror that is a week behind.
# Libraries of a package of experimental that experimental lacks come from sid.
#
# It leaves the folder empty if the suite has no such package.
set -e
suite=$1 package=$2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || { echo "no $keyring: this needs Debian" >&2; exit 1; }

mkdir -p apt/lists/partial apt/archives/partial root
: >apt/status
for from in $suite $([ "$suite" != experimental ] || echo sid); do
	echo "deb [signed-by=$keyring target=Packages] http://deb.debian.org/debian $from main"
done >apt/sources.list
apt() {
	tool=$1 && shift
	"$tool" -q -o Dir::Etc::sourcelist="$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o Dir::State::lists="$PWD/apt/lists" -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt" \
		-o APT::Sandbox::User=root -o APT::Install-Recommends=false -o APT::Default-Release="$suite" "$@"
}
apt apt-get update -o Acquire::Check-Valid-Until=false -o APT::Update::Error-Mode=any
if ! apt apt-cache madison "$package" | grep -q " $suite/"; then
	rm -r apt root
	exit
fi
libraries=$(apt apt-get -s install "$package" | sed -n 's/^Inst \(lib[^ ]*\|zlib[^ ]*\) (\([^ ]*\).*/\1=\2/p')

apt apt-get download "$package" $libraries
dpkg-deb -x "$package"_*.deb root
for program in root/bin/* root/sbin/* root/usr/bin/* root/usr/sbin/* root/usr/lib/$package/*; do
	[ -f "$program" ] && [ -x "$program" ] || continue
	cat >"${program##*/}" <<-END
		#!/bin/sh
		root=\${0%/*}/root
		for start in "\$root"/lib/*/ld-linux-*.so.* "\$root"/usr/lib/*/ld-linux-*.so.*; do
			[ -e "\$start" ] && break
		done
		lib=\${start%/*} lib=\${lib#"\$root"} lib=\${lib#/usr}
		exec "\$start" --argv0 "\$0" --library-path "\$root\$lib:\$root/usr\$lib:\$root/usr\$lib/$package" "\${0%/*}/$program" "\$@"
	END
	chmod 755 "${program##*/}"
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
rm -rf apt ./*.deb
