#!/usr/bin/env bash
# Programs that some tests run against: GDAL reads the service, nftables and ip make networks that
# lose packets. Where they can not be installed those tests say so and are skipped.
set -uo pipefail
missing=()
command -v ogrinfo >/dev/null || missing+=(gdal-bin)
command -v nft >/dev/null || [ -x /usr/sbin/nft ] || missing+=(nftables)
command -v ip >/dev/null || [ -x /usr/sbin/ip ] || missing+=(iproute2)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  printf 'tools: installing %s with apt-get\n' "${missing[*]}" >&2
  apt-get -qq update >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}" >&2
else
  printf 'tools: some tests will be skipped; to run them install %s\n' "${missing[*]}" >&2
fi
exit 0
