#!/bin/sh
# Keys, a certificate, tokens and settings for compose.yaml; what is there already stays as it is.
# Usage: compose_setup.sh CONFIG_DIR TRUST_DATA BROKER_DATA
set -eu
config=${1:?usage: compose_setup.sh CONFIG_DIR TRUST_DATA BROKER_DATA} trust=$2 data=$3
# The names that containers and people call the two by; a test on one machine gives others.
names=${ROAMCAST_NAMES:-DNS:broker,DNS:trust,DNS:localhost,IP:127.0.0.1}
nats=${ROAMCAST_NATS:-nats://nats:4222}
trust_url=${ROAMCAST_TRUST_URL:-https://trust:8090}
umask 077

if ! [ -e "$config/cert.pem" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=roamcast" \
    -addext "subjectAltName=$names" -keyout "$config/key.pem" -out "$config/cert.pem" 2>/dev/null
  cp "$config/cert.pem" "$config/ca.pem" # signed by itself: whoever trusts it trusts this alone
fi
if ! [ -e "$config/nats.password" ]; then
  openssl rand -hex 24 >"$config/nats.password"
  printf 'authorization { user: roamcast, password: "%s" }\n' "$(cat "$config/nats.password")" >"$config/nats.conf"
fi
[ -e "$config/deposit.token" ] || roamcast token --data "$trust" --subject broker --scope deposit --lifetime 365d >"$config/deposit.token" 2>/dev/null
# A service beyond loopback does not start without keys: making a token makes them.
[ -e "$data/keys.json" ] || roamcast token --data "$data" --lifetime 1s >/dev/null 2>&1
if ! [ -e "$config/trust.toml" ]; then
  cat >"$config/trust.toml" <<TOML
[server]
tls_cert = "$config/cert.pem"
tls_key = "$config/key.pem"
TOML
fi
if ! [ -e "$config/roamcast.toml" ]; then
  cat >"$config/roamcast.toml" <<TOML
[server]
port = 8443
tls_cert = "$config/cert.pem"
tls_key = "$config/key.pem"

[channels]
nats = "$nats"
nats_user = "roamcast"
nats_password_file = "$config/nats.password"

[identity]
node = "" # people's vids come from the trusted node, which is a container of its own
accept = { trust = "$(roamcast trust --key --data "$trust")" }
[identity.mail.trust]
url = "$trust_url"
token_file = "$config/deposit.token"
tls_ca = "$config/ca.pem"
TOML
fi
echo "ready: settings in $config"
