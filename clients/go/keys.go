package baton

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// GenerateKey returns a new key from the operating system's random number generator.
func GenerateKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

// LoadKey reads a key file in PKCS#8 PEM, the format of "baton keygen" and "openssl genpkey -algorithm ed25519".
func LoadKey(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("baton: %s is not PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("baton: failed to read %s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("baton: %s is not an ed25519 private key", path)
	}
	return key, nil
}

// SaveKey writes a new key file, readable only by its owner. It does not overwrite a file: it fails with fs.ErrExist.
func SaveKey(path string, key ed25519.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := pem.Encode(file, &pem.Block{Type: "PRIVATE KEY", Bytes: der}); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// LoadCA reads the certificates of a CA, for Options.RootCAs. A development broker writes its CA to tls/ca.pem in its
// data folder.
func LoadCA(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("baton: %s has no certificate", path)
	}
	return pool, nil
}
