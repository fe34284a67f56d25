#!/bin/sh
# Makes the certificates that the TLS tests use: an authority, a server for localhost, a client with a SPIFFE name, and a
# client of an authority that nobody trusts. Keys of tests only; they protect nothing.
set -eu
cd "$(dirname "$0")"
key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1.key"; }
authority() {
    key "$1"
    openssl req -x509 -new -key "$1.key" -days 36500 -subj "/CN=vipd tests $1" -out "$1.crt" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"
}
leaf() {
    key "$1"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$3" >"$1.ext"
    openssl req -new -key "$1.key" -subj "/CN=$1" |
        openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 36500 -extfile "$1.ext" -out "$1.crt"
    rm -f "$1.ext" "$2.srl"
}
authority ca
authority stranger-ca
leaf server ca "DNS:localhost,IP:127.0.0.1"
leaf client ca "URI:spiffe://example.org/vipd-k8s"
leaf other ca "DNS:other.example.org"
leaf stranger stranger-ca "URI:spiffe://example.org/vipd-k8s"
rm -f ca.key stranger-ca.key
