package baton

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	resultField    = "envelope.payload.result"
	dataField      = "envelope.payload.data"
	resultBytesMax = 262144
	dataBytesMax   = 65536
	// The levels of messages in a message that the broker's parser takes. A JSON object is three: the object, its field and
	// the field's value. An array is two.
	messageLevelsMax = 100
	// The integers up to which the broker writes a number without a fraction.
	wholeNumberMax = 1 << 53
)

// checkPayload refuses a result or an answer that the broker is known to refuse.
func checkPayload(payload proto.Message) error {
	switch payload := payload.(type) {
	case *v1.TaskStatusUpdate:
		return checkStruct(resultField, payload.GetResult(), resultBytesMax)
	case *v1.TaskInput:
		return checkStruct(dataField, payload.GetData(), dataBytesMax)
	}
	return nil
}

// structOf converts a value that encoding/json encodes as an object.
func structOf(field string, value map[string]any) (*structpb.Struct, error) {
	plain, err := plainOf(field, value)
	if err != nil {
		return nil, err
	}
	return structpb.NewStruct(plain.(map[string]any))
}

// plainOf returns a value made of maps, slices and plain values alone.
func plainOf(path string, value any) (any, error) {
	switch value := value.(type) {
	case nil, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return value, nil
	case string:
		return value, checkText(path, value)
	case map[string]any:
		plain := make(map[string]any, len(value))
		for name, one := range value {
			if err := checkText(path, name); err != nil {
				return nil, err
			}
			inner, err := plainOf(path+"."+name, one)
			if err != nil {
				return nil, err
			}
			plain[name] = inner
		}
		return plain, nil
	case []any:
		plain := make([]any, len(value))
		for i, one := range value {
			inner, err := plainOf(fmt.Sprintf("%s[%d]", path, i), one)
			if err != nil {
				return nil, err
			}
			plain[i] = inner
		}
		return plain, nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, invalidAt(path, "cannot be encoded as JSON: "+err.Error())
	}
	if at := loneSurrogate(string(text)); at >= 0 {
		return nil, invalidAt(path, "has half a surrogate pair, "+string(text[at:at+6]))
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return nil, invalidAt(path, "cannot be encoded as JSON: "+err.Error())
	}
	return plain, nil
}

func checkText(path, text string) error {
	if utf8.ValidString(text) {
		return nil
	}
	return invalidAt(path, fmt.Sprintf("has a text that is not valid UTF-8: %.40q", text))
}

func invalidAt(path, problem string) error { return invalid([]FieldViolation{{path, problem}}) }

// loneSurrogate returns the place of an escape of half a surrogate pair in JSON, or -1.
func loneSurrogate(text string) int {
	unit := func(at int) uint64 {
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
			return 0
		}
		value, _ := strconv.ParseUint(text[at+2:at+6], 16, 16)
		return value
	}
	for at := 0; at < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		switch first := unit(at); {
		case first >= 0xd800 && first < 0xdc00:
			if second := unit(at + 6); second < 0xdc00 || second > 0xdfff {
				return at
			}
			at += 11
		case first >= 0xdc00 && first <= 0xdfff:
			return at
		default:
			at++ // the escaped character
		}
	}
	return -1
}

// checkStruct refuses a struct that is too large, too deep, or not JSON.
func checkStruct(field string, object *structpb.Struct, bytesMax int) error {
	if object == nil {
		return nil
	}
	m := &measure{field: field}
	bytes := m.object(object, field, 1)
	if m.wrong != nil {
		return invalid([]FieldViolation{*m.wrong})
	}
	if bytes > bytesMax {
		return invalidAt(field, fmt.Sprintf(
			"has %d bytes as JSON, over the limit of %d; store it elsewhere and send a reference to it", bytes, bytesMax))
	}
	return nil
}

// measure finds the size of a struct as JSON, and the first thing in it that the broker refuses.
type measure struct {
	field string
	wrong *FieldViolation
}

func (m *measure) refuse(path, problem string) {
	if m.wrong == nil {
		m.wrong = &FieldViolation{path, problem}
	}
}

// isDeep reports whether a message at this level is too deep for the broker's parser.
func (m *measure) isDeep(path string, level int) bool {
	if level <= messageLevelsMax {
		return false
	}
	inner := path[len(m.field):]
	objects, arrays := strings.Count(inner, "."), strings.Count(inner, "[")
	m.refuse(m.field, fmt.Sprintf(
		"is nested too deep: %d objects and %d arrays, at %.60s…; the limit is %d levels, of which an object takes 3 and an array 2",
		objects, arrays, inner, messageLevelsMax))
	return true
}

func (m *measure) object(object *structpb.Struct, path string, level int) int {
	if m.isDeep(path, level) {
		return 0
	}
	bytes := 2 + max(len(object.GetFields())-1, 0)
	for name, value := range object.GetFields() {
		if m.wrong != nil || m.isDeep(path+"."+name, level+1) {
			return 0
		}
		if err := checkText(path, name); err != nil {
			m.refuse(path, fmt.Sprintf("has a name that is not valid UTF-8: %.40q", name))
		}
		bytes += textBytes(name) + 1 + m.value(value, path+"."+name, level+2)
	}
	return bytes
}

func (m *measure) value(value *structpb.Value, path string, level int) int {
	if m.isDeep(path, level) {
		return 0
	}
	switch kind := value.GetKind().(type) {
	case *structpb.Value_StructValue:
		return m.object(kind.StructValue, path, level+1)
	case *structpb.Value_ListValue:
		if m.isDeep(path+"[]", level+1) {
			return 0
		}
		values := kind.ListValue.GetValues()
		bytes := 2 + max(len(values)-1, 0)
		for _, one := range values {
			bytes += m.value(one, path+"[]", level+2)
		}
		return bytes
	case *structpb.Value_StringValue:
		if !utf8.ValidString(kind.StringValue) {
			m.refuse(path, fmt.Sprintf("has a text that is not valid UTF-8: %.40q", kind.StringValue))
		}
		return textBytes(kind.StringValue)
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			m.refuse(path, fmt.Sprintf("must be a finite number, not %v", kind.NumberValue))
		}
		return numberBytes(kind.NumberValue)
	case *structpb.Value_BoolValue:
		if !kind.BoolValue {
			return len("false")
		}
	}
	return len("null")
}

// textBytes returns the length of a text as JSON.
func textBytes(text string) int {
	bytes := 2 + len(text)
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t':
			bytes++
		case c < 0x20:
			bytes += len(`\u0000`) - 1
		}
	}
	return bytes
}

// numberBytes returns the length of a number as the broker writes it in JSON: without an exponent up to 16 digits before
// the point and 5 zeros after it.
func numberBytes(number float64) int {
	if number == math.Trunc(number) && math.Abs(number) <= wholeNumberMax {
		return len(strconv.FormatInt(int64(number), 10))
	}
	short := strconv.FormatFloat(number, 'e', -1, 64)
	mantissa, power, _ := strings.Cut(short, "e")
	exponent, _ := strconv.Atoi(power)
	switch plain := strconv.FormatFloat(number, 'f', -1, 64); {
	case exponent < -5 || exponent >= 16:
		return len(mantissa) + 1 + len(strconv.Itoa(exponent))
	case !strings.Contains(plain, "."):
		return len(plain) + len(".0")
	default:
		return len(plain)
	}
}
