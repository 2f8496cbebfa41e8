#!/usr/bin/env bash
# Programs that some tests and benches run against: GDAL reads the service, Chromium shows the map page,
# nftables and ip make networks that lose packets, PostgreSQL with PostGIS is the peer of
# `bench run query`. Where they can not be installed, what needs them says so and is skipped.
set -uo pipefail
missing=()
command -v ogrinfo >/dev/null || missing+=(gdal-bin)
command -v chromium >/dev/null || missing+=(chromium)
command -v nft >/dev/null || [ -x /usr/sbin/nft ] || missing+=(nftables)
command -v ip >/dev/null || [ -x /usr/sbin/ip ] || missing+=(iproute2)
compgen -G '/usr/share/postgresql/*/extension/postgis.control' >/dev/null ||
  missing+=(postgresql postgresql-15-postgis-3)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  printf 'tools: installing %s with apt-get\n' "${missing[*]}" >&2
  apt-get -qq update >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}" >&2
else
  printf 'tools: some tests will be skipped; to run them install %s\n' "${missing[*]}" >&2
fi
exit 0
