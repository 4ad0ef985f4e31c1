# Unpacks Debian's bird2 beside the bird that is installed, which it cannot
# replace: in this folder tree/ is what the package holds, with the libraries
# that this machine lacks, and bird and birdc start what is in it at $1.
set -e
apt-get -q -o APT::Sandbox::User=root download bird2
for library in $(dpkg-deb -f bird2_*.deb Depends | tr -d ' ' | tr ',' '\n' | sed 's/[(|].*//' | grep '^lib'); do
	dpkg-query -W -f '${db:Status-Status}' "$library" 2>/dev/null | grep -qx installed ||
		apt-get -q -o APT::Sandbox::User=root download "$library"
done
for package in *.deb; do dpkg-deb -x "$package" tree; done
for program in bird birdc; do
	printf '#!/bin/sh\nLD_LIBRARY_PATH=$(echo %s/tree/usr/lib/*-linux-gnu) exec %s/tree/usr/sbin/%s "$@"\n' "$1" "$1" $program >$program
	chmod 755 $program
done
rm -f ./*.deb
