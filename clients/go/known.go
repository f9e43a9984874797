package baton

import (
	"bytes"
	"crypto/sha256"
	"sync"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const knownBytesMax = 64 << 20

type sectionKey struct{ taskID, name string }

// knownSections has the JSON that this process has sent or received, as bases of deltas: the latest text of each section
// of a task.
type knownSections struct {
	mu    sync.Mutex
	texts map[sectionKey]string
	bytes int
}

// get returns the latest text of a section, or "".
func (k *knownSections) get(taskID, name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.texts[sectionKey{taskID, name}]
}

// find returns the latest text of a section if it has this digest, or "".
func (k *knownSections) find(taskID, name string, digest []byte) string {
	text := k.get(taskID, name)
	if sum := sha256.Sum256([]byte(text)); !bytes.Equal(sum[:], digest) {
		return ""
	}
	return text
}

// note stores the JSON sections of a context. Over 64 MiB, it drops all other texts.
func (k *knownSections) note(taskID string, sections []*v1.ContextSection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, section := range sections {
		content, is := section.GetContent().(*v1.ContextSection_Json)
		if !is {
			continue
		}
		key := sectionKey{taskID, section.GetName()}
		k.bytes += len(content.Json) - len(k.texts[key])
		if k.texts == nil || k.bytes > knownBytesMax {
			k.texts, k.bytes = map[sectionKey]string{}, len(content.Json)
		}
		k.texts[key] = content.Json
	}
}

// forget drops the texts of a task.
func (k *knownSections) forget(taskID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, text := range k.texts {
		if key.taskID == taskID {
			k.bytes -= len(text)
			delete(k.texts, key)
		}
	}
}
