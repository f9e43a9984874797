package baton

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Options from the environment and from the profiles that the command line writes.

// newEnvironment clears the variables of baton, and gives the test an empty folder for profiles and one to work in.
func newEnvironment(t *testing.T) (profiles string) {
	t.Helper()
	for _, name := range []string{
		"PROFILE", "SERVER", "CA", "AGENT_ID", "AGENT_KEY", "AGENT_KEY_ID", "TOKEN", "CERT", "CERT_KEY",
	} {
		t.Setenv("BATON_"+name, "") // restores it at the end
		if err := os.Unsetenv("BATON_" + name); err != nil {
			t.Fatal(err)
		}
	}
	base := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", base)
	t.Chdir(t.TempDir())
	return filepath.Join(base, "baton", "profiles")
}

// cli runs a command of the command line.
func cli(t *testing.T, arguments ...string) {
	t.Helper()
	if output, err := exec.Command(os.Getenv("BATON_BIN"), arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", arguments, err, output)
	}
}

// newKey writes a key file.
func newKey(t *testing.T, name string) (string, ed25519.PrivateKey) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".pem")
	cli(t, "keygen", "--out", path)
	return path, ok[ed25519.PrivateKey](t)(LoadKey(path))
}

func sharedCA() string { return filepath.Join(shared.data, "tls", "ca.pem") }

func addProfile(t *testing.T, name string, more ...string) {
	t.Helper()
	cli(t, append([]string{"profile", "add", name, "--server", shared.address, "--ca", sharedCA()}, more...)...)
}

// connects checks that an agent with these options has a session.
func connects(t *testing.T, options Options) {
	t.Helper()
	options.Card = &v1.AgentCard{}
	agent := connected(t, options)
	ok[*v1.Agent](t)(agent.GetAgent(patient(t), options.AgentID))
}

func TestAnAgentConnectsByTheProfileInUse(t *testing.T) {
	newEnvironment(t)
	id, other := unique("bob"), unique("carol")
	path, key := newKey(t, "bob")
	addProfile(t, "bob", "--id", id, "--key", path, "--key-id", "k7", "--format", "json", "--use")
	addProfile(t, "carol", "--id", other, "--key", path)
	options := ok[Options](t)(OptionsFromEnv())
	if options.Target != shared.address || options.AgentID != id || options.KeyID != "k7" || !options.Key.Equal(key) {
		t.Errorf("%+v", options)
	}
	connects(t, options)
	t.Setenv("BATON_PROFILE", "carol")
	options = ok[Options](t)(OptionsFromEnv())
	if options.AgentID != other || options.KeyID != "" {
		t.Errorf("%s %s", options.AgentID, options.KeyID)
	}
}

func TestTheEnvironmentTakesPrecedenceOverTheProfile(t *testing.T) {
	newEnvironment(t)
	bobs, _ := newKey(t, "bob")
	carols, key := newKey(t, "carol")
	id, missing := unique("carol"), filepath.Join(t.TempDir(), "missing.pem")
	cli(t, "profile", "add", "bob", "--server", "broker.example:1", "--id", "bob", "--key", bobs, "--key-id", "k7", "--use")
	if err := os.Remove(bobs); err != nil { // it is not read
		t.Fatal(err)
	}
	t.Setenv("BATON_SERVER", "https://"+shared.address+"/")
	t.Setenv("BATON_CA", sharedCA())
	t.Setenv("BATON_AGENT_ID", id)
	t.Setenv("BATON_AGENT_KEY", carols)
	options := ok[Options](t)(OptionsFromEnv())
	// The name of the profile's key does not belong to this one.
	if options.Target != shared.address || options.AgentID != id || options.KeyID != "" || !options.Key.Equal(key) {
		t.Errorf("%+v", options)
	}
	connects(t, options)
	t.Setenv("BATON_AGENT_KEY_ID", "k2")
	t.Setenv("BATON_TOKEN", " a token\n")
	options = ok[Options](t)(OptionsFromEnv())
	if options.KeyID != "k2" || options.Token != "a token" {
		t.Errorf("%+v", options)
	}
	t.Setenv("BATON_CA", missing)
	if _, err := OptionsFromEnv(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "baton: BATON_CA: ") {
		t.Error(err)
	}
}

func TestTheBrokerOfTheFolderIsTrustedByItsOwnCA(t *testing.T) {
	newEnvironment(t)
	path, _ := newKey(t, "bob")
	id := unique("bob")
	t.Setenv("BATON_AGENT_ID", id)
	t.Setenv("BATON_AGENT_KEY", path)
	if options := ok[Options](t)(OptionsFromEnv()); options.Target != serverDefault || options.RootCAs != nil {
		t.Errorf("%+v", options)
	}
	if err := os.Symlink(shared.data, localData); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(shared.address, ":")
	t.Setenv("BATON_SERVER", "localhost:"+port)
	connects(t, ok[Options](t)(OptionsFromEnv()))
	for _, other := range []string{"127.0.0.1:1", "127.0.0.2:" + port, "broker.example:" + port} {
		t.Setenv("BATON_SERVER", other)
		if options := ok[Options](t)(OptionsFromEnv()); options.RootCAs != nil {
			t.Errorf("%s has the CA of the broker that runs here", other)
		}
	}
}

func TestAClientCertificateOfTheEnvironmentIsUsed(t *testing.T) {
	newEnvironment(t)
	path, _ := newKey(t, "bob")
	t.Setenv("BATON_AGENT_ID", "bob")
	t.Setenv("BATON_AGENT_KEY", path)
	tls := filepath.Join(shared.data, "tls")
	t.Setenv("BATON_CERT", filepath.Join(tls, "server.pem"))
	if _, err := OptionsFromEnv(); err == nil || !strings.Contains(err.Error(), "BATON_CERT_KEY go together") {
		t.Error(err)
	}
	t.Setenv("BATON_CERT_KEY", filepath.Join(tls, "server.key"))
	if options := ok[Options](t)(OptionsFromEnv()); options.Certificate == nil {
		t.Error("the certificate is missing")
	}
}

func TestAFaultOfTheEnvironmentNamesItsRemedy(t *testing.T) {
	profiles := newEnvironment(t)
	path, _ := newKey(t, "bob")
	write := func(name, text string, mode fs.FileMode) {
		t.Helper()
		file := filepath.Join(profiles, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	cli(t, "profile", "add", "nobody", "--server", "127.0.0.1:1")
	write("open.toml", "server = \"127.0.0.1:1\"\n", 0o644)
	write("misspelt.toml", "sever = \"127.0.0.1:1\"\n", 0o600)
	write("broken.toml", "server = \n", 0o600)
	write("gone.toml", "id = \"bob\"\nkey = \"/none/bob.pem\"\n", 0o600)
	for name, one := range map[string]struct {
		set  map[string]string
		says []string
	}{
		"no agent":                {nil, []string{"no agent is named", "BATON_AGENT_ID and BATON_AGENT_KEY", "baton profile add"}},
		"a profile with no agent": {map[string]string{"PROFILE": "nobody"}, []string{"nobody.toml names no agent", "BATON_AGENT_ID"}},
		"no such profile":         {map[string]string{"PROFILE": "prod"}, []string{"BATON_PROFILE", "prod", "baton profile list"}},
		"a name with a path":      {map[string]string{"PROFILE": "../prod"}, []string{"BATON_PROFILE", "is not a name"}},
		"a profile for all":       {map[string]string{"PROFILE": "open"}, []string{"mode 0644", "chmod 600"}},
		"a misspelt key":          {map[string]string{"PROFILE": "misspelt"}, []string{"misspelt.toml", "the key sever"}},
		"no TOML":                 {map[string]string{"PROFILE": "broken"}, []string{"broken.toml"}},
		"a key that is gone":      {map[string]string{"PROFILE": "gone"}, []string{"the key of", "/none/bob.pem", "baton keygen"}},
		"an id without a key":     {map[string]string{"AGENT_ID": "bob"}, []string{"BATON_AGENT_KEY is not"}},
		"a key without an id":     {map[string]string{"AGENT_KEY": path}, []string{"BATON_AGENT_ID is not"}},
		"a key that is no key": {
			map[string]string{"AGENT_ID": "bob", "AGENT_KEY": sharedCA()}, []string{"baton: BATON_AGENT_KEY: ", "ca.pem"},
		},
		"no address": {map[string]string{"SERVER": "broker.example"}, []string{"BATON_SERVER", "HOST:PORT"}},
		"a CA without a certificate": {
			map[string]string{"CA": path}, []string{"baton: BATON_CA: " + path, "has no certificate"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range one.set {
				t.Setenv("BATON_"+key, value)
			}
			_, err := OptionsFromEnv()
			if err == nil {
				t.Fatal("there is no error")
			}
			for _, part := range one.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if strings.Count(err.Error(), "baton: ") != 1 {
				t.Errorf("%q", err)
			}
		})
	}
}

func TestAPlaintextBrokerOfTheEnvironmentKeepsItsScheme(t *testing.T) {
	newEnvironment(t)
	path, key := newKey(t, "bob")
	t.Setenv("BATON_AGENT_ID", "bob")
	t.Setenv("BATON_AGENT_KEY", path)
	t.Setenv("BATON_SERVER", "http://127.0.0.1:22866")
	options := ok[Options](t)(OptionsFromEnv())
	if options.Target != "http://127.0.0.1:22866" || !bytes.Equal(options.Key, key) {
		t.Errorf("%+v", options)
	}
}
