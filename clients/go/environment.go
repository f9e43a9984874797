package baton

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

const (
	serverDefault = "127.0.0.1:22866"
	// The data folder of "baton dev" in the working directory.
	localData = "baton-data"
)

// OptionsFromEnv returns the options that the environment, or the profile of the command line, names: Target, RootCAs,
// AgentID, Key and KeyID, and Certificate or Token if they are set. The caller may set the others before Connect.
//
// A variable takes precedence over the value of the profile, and an empty variable counts as absent:
//
//   - BATON_SERVER: the broker; default 127.0.0.1:22866.
//   - BATON_CA: the CA file. The default is ./baton-data/tls/ca.pem for the broker that runs on ./baton-data, otherwise
//     the system's CAs.
//   - BATON_AGENT_ID and BATON_AGENT_KEY: the agent and the file of its key, both or neither. BATON_AGENT_KEY_ID is the
//     key's id; default "k1".
//   - BATON_TOKEN: a token of the agent.
//   - BATON_CERT and BATON_CERT_KEY: the files of a client certificate and of its key, both or neither.
//
// BATON_PROFILE names a profile of "baton profile add"; the default is the one of "baton profile use", if any. Profiles
// are in $XDG_CONFIG_HOME/baton/profiles or ~/.config/baton/profiles. OptionsFromEnv fails if no agent is named, or if a
// file that is named cannot be used; the error says which variable to set.
func OptionsFromEnv() (Options, error) {
	saved, err := chosenProfile()
	if err != nil {
		return Options{}, err
	}
	options := Options{Token: strings.TrimSpace(os.Getenv("BATON_TOKEN"))}
	if options.Target, err = serverOf(saved); err != nil {
		return Options{}, err
	}
	if path, source := caOf(saved, options.Target); path != "" {
		if options.RootCAs, err = LoadCA(path); err != nil {
			return Options{}, badFile(source, err, "\"baton dev\" creates a CA in its data folder, tls/ca.pem")
		}
	}
	if err := readIdentity(&options, saved); err != nil {
		return Options{}, err
	}
	certificate, key := os.Getenv("BATON_CERT"), os.Getenv("BATON_CERT_KEY")
	if (certificate == "") != (key == "") {
		return Options{}, errors.New("baton: BATON_CERT and BATON_CERT_KEY go together: set both or neither")
	}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return Options{}, fmt.Errorf("baton: BATON_CERT and BATON_CERT_KEY: %w", err)
		}
		options.Certificate = &pair
	}
	return options, nil
}

// profile is a file of "baton profile add". Output is of the command line alone.
type profile struct {
	Server string `toml:"server"`
	CA     string `toml:"ca"`
	ID     string `toml:"id"`
	Key    string `toml:"key"`
	KeyID  string `toml:"key_id"`

	// These are the command line's alone: an agent proves itself by its key.
	Output    string `toml:"output"`
	TokenFile string `toml:"token_file"`
	Cert      string `toml:"cert"`
	CertKey   string `toml:"cert_key"`

	path string
}

var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// chosenProfile returns the profile that BATON_PROFILE or "baton profile use" has chosen; an empty one without a choice.
func chosenProfile() (*profile, error) {
	folder := profileFolder()
	name, source := os.Getenv("BATON_PROFILE"), "BATON_PROFILE"
	if name == "" {
		if folder == "" {
			return &profile{}, nil
		}
		source = filepath.Join(folder, "current")
		text, err := os.ReadFile(source)
		if errors.Is(err, fs.ErrNotExist) {
			return &profile{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("baton: failed to read which profile is in use: %w", err)
		}
		name = strings.TrimSpace(string(text))
	}
	// A name becomes part of a path, so it must not lead out of the folder.
	if !profileName.MatchString(name) {
		return nil, fmt.Errorf(
			"baton: %s: %q is not a name: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit", source, name)
	}
	if folder == "" {
		return nil, errors.New("baton: there is no folder for profiles: set HOME or XDG_CONFIG_HOME")
	}
	saved, err := readProfile(filepath.Join(folder, name+".toml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"baton: %s: no profile has the name %s in %s; \"baton profile list\" lists them", source, name, folder)
	}
	if err != nil {
		return nil, fmt.Errorf("baton: the profile %s: %w", name, err)
	}
	return saved, nil
}

// profileFolder returns the folder of all profiles; empty if there is none.
func profileFolder() string {
	if base := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "baton", "profiles")
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "baton", "profiles")
	}
	return ""
}

func readProfile(path string) (*profile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// The file decides where this program connects. Windows has no such modes.
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return nil, fmt.Errorf("other users can read or change %s (mode %04o); run chmod 600 %s", path, mode, path)
	}
	saved := &profile{path: path}
	meta, err := toml.DecodeFile(path, saved)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// A misspelt key would leave a default in force, for example another broker.
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: this version of the client does not know the key %s", path, unknown[0])
	}
	return saved, nil
}

// serverOf returns the broker's address as Options.Target takes it.
func serverOf(saved *profile) (string, error) {
	text, source := os.Getenv("BATON_SERVER"), "BATON_SERVER"
	if text == "" {
		text, source = saved.Server, "the server of "+saved.path
	}
	if text == "" {
		return serverDefault, nil
	}
	address, isPlaintext := strings.CutPrefix(text, plaintextScheme)
	address = strings.TrimRight(strings.TrimPrefix(address, "https://"), "/")
	host, port, err := net.SplitHostPort(address)
	number, _ := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || number == 0 || strings.ContainsAny(host, "/@") {
		return "", fmt.Errorf("baton: %s: %q is not HOST:PORT, for example %s", source, text, serverDefault)
	}
	if isPlaintext {
		return plaintextScheme + address, nil
	}
	return address, nil
}

// caOf returns the CA file and what names it; an empty path for the system's CAs.
func caOf(saved *profile, server string) (path, source string) {
	if path := os.Getenv("BATON_CA"); path != "" {
		return path, "BATON_CA"
	}
	if saved.CA != "" {
		return saved.CA, "the ca of " + saved.path
	}
	local := filepath.Join(localData, "tls", "ca.pem")
	if _, err := os.Stat(local); err != nil || !isLocalBroker(server) {
		return "", ""
	}
	return local, "the CA of the broker that runs here"
}

// isLocalBroker reports whether HOST:PORT is the address of the broker that runs on the local data folder. No name except
// localhost is resolved, because it may name another machine.
func isLocalBroker(server string) bool {
	text, err := os.ReadFile(filepath.Join(localData, "address"))
	if err != nil {
		return false
	}
	address, err := netip.ParseAddrPort(strings.TrimSpace(string(text)))
	if err != nil {
		return false
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil || port != strconv.Itoa(int(address.Port())) {
		return false
	}
	own := address.Addr()
	if host == "localhost" {
		return own.IsLoopback() || own.IsUnspecified()
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip == own || own.IsUnspecified() && ip.IsLoopback())
}

// readIdentity sets the agent and its key. They are taken together from the environment or from the profile, for a key
// is of one agent.
func readIdentity(options *Options, saved *profile) error {
	id, key, keyID := os.Getenv("BATON_AGENT_ID"), os.Getenv("BATON_AGENT_KEY"), os.Getenv("BATON_AGENT_KEY_ID")
	source := "BATON_AGENT_KEY"
	switch {
	case id == "" && key == "":
		id, key, keyID, source = saved.ID, saved.Key, orElse(keyID, saved.KeyID), "the key of "+saved.path
	case id == "":
		return errors.New("baton: BATON_AGENT_KEY is set and BATON_AGENT_ID is not: set the id of the agent that has the key")
	case key == "":
		return errors.New("baton: BATON_AGENT_ID is set and BATON_AGENT_KEY is not: set the file of the agent's private key")
	}
	if id == "" || key == "" {
		problem := "no agent is named"
		if saved.path != "" {
			problem = "the profile " + saved.path + " names no agent"
		}
		return fmt.Errorf("baton: %s: set BATON_AGENT_ID and BATON_AGENT_KEY, or choose a profile with an agent, "+
			"\"baton profile add NAME --id AGENT --key FILE --use\"", problem)
	}
	read, err := LoadKey(key)
	if err != nil {
		return badFile(source, err, fmt.Sprintf("\"baton keygen --out %s\" creates a key", key))
	}
	options.AgentID, options.Key, options.KeyID = id, read, keyID
	return nil
}

// badFile returns the error of a file that source names. remedy says how to make the file.
func badFile(source string, err error, remedy string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("baton: %s: %w; %s", source, err, remedy)
	}
	var own *fs.PathError
	if errors.As(err, &own) {
		return fmt.Errorf("baton: %s: %w", source, err)
	}
	return fmt.Errorf("baton: %s: %s", source, strings.TrimPrefix(err.Error(), "baton: "))
}
