package config

import (
	"cmp"
	_ "embed" // for settingsText
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"example.com/conductor/conductor/registration"
)

// settingsText is the source of the structs that the walk reads. Their comments are the descriptions, which
// reflection does not see.
//
//go:embed settings.go
var settingsText string

// A field is one key of a map in a file, as the tags of a struct's field describe it.
type field struct {
	name     string  // as files write it
	index    []int   // of the field in its struct, as reflect has it
	kind     kind    // how its value is written; the zero kind for a struct
	nullable bool    // null means not given, as in the body of POST /register (yaml:",omitempty")
	members  []field // of a struct
}

// fieldsOf returns the fields of a struct that files have.
func fieldsOf(of reflect.Type) (out []field) {
	for i := range of.NumField() {
		member := of.Field(i)
		name, options, _ := strings.Cut(member.Tag.Get("yaml"), ",")
		if name == "" {
			continue
		}
		f := field{name: name, index: []int{i}, kind: kindOf(member), nullable: options == "omitempty"}
		if member.Type.Kind() == reflect.Struct {
			f.members = fieldsOf(member.Type)
		}
		out = append(out, f)
	}
	return out
}

var (
	configFields   = fieldsOf(reflect.TypeFor[Config]())
	fileFields     = append(slices.Clip(configFields), field{name: mooncakePort}, field{name: mooncakeSources})
	listenerFields = fieldsOf(reflect.TypeFor[Listener]())
)

// sourceFields are the fields of a source: what to ask, and those of a registration.
var sourceFields = func() []field {
	out := fieldsOf(reflect.TypeFor[Source]())
	whole, _ := reflect.TypeFor[Source]().FieldByName("Profile")
	profile := field{name: hashProfile, index: whole.Index, nullable: true}
	for i := range registration.Table {
		f := &registration.Table[i]
		member := reflect.TypeFor[registration.Registration]().FieldByIndex(f.Index)
		one := field{f.Name, append([]int{0}, f.Index...), kindOf(member), !f.Required, nil}
		if name, ok := strings.CutPrefix(f.Name, hashProfile+"."); ok {
			one.name, one.index, one.kind = name, f.Index[1:], textKinds[""] // its words depend on each other
			if f.Required {
				one.kind = textKinds["filled"]
			}
			profile.members = append(profile.members, one)
		} else {
			out = append(out, one)
		}
	}
	return append(out, profile)
}()

// A setting is a field of a section of Config. Flags and variables can give its value too.
type setting struct {
	field
	path    string // section.name, or listeners
	flag    string // name of the flag, without dashes
	initial any    // the default
	live    bool   // a running server takes a change over
	group   string // heading above the setting; "" for all but the first of a group
	example string // what config init shows; "" for all but a dozen
	help    string // what it does, in one line
	reason  string // why the default is what it is; "" if that needs no words
}

// allSettings are all of them, in the order of the struct. settings are those in sections: all but listeners.
var (
	allSettings = walkConfig()
	settings    = allSettings[1:]
)

// walkConfig finds the settings. A field that is not described as settings.go says is a bug.
func walkConfig() (out []setting) {
	comments := commentsOf(settingsText)
	add := func(parent string, member reflect.StructField, f field, path string, index ...int) *setting {
		s := setting{field: f, path: path, live: member.Tag.Get("reload") != "", example: member.Tag.Get("start")}
		s.index = index
		s.flag = cmp.Or(member.Tag.Get("flag"), strings.NewReplacer(".", "-", "_", "-").Replace(path))
		s.initial = reflect.Zero(member.Type).Interface()
		if text, ok := member.Tag.Lookup("default"); ok {
			s.initial = mustParse(s.kind, text)
		}
		help, reason, _ := strings.Cut(comments[parent+"."+member.Name], "\n\n")
		s.help = strings.Join(strings.Fields(help), " ")
		s.reason = strings.TrimPrefix(strings.Join(strings.Fields(reason), " "), "Default: ")
		if s.help == "" {
			panic("BUG: settings.go has no comment on " + path)
		}
		out = append(out, s)
		return &out[len(out)-1]
	}
	for _, f := range configFields {
		section := reflect.TypeFor[Config]().FieldByIndex(f.index)
		if f.name == "listeners" {
			add("Config", section, f, f.name, f.index...).help += "; dialects: " + strings.Join(dialectKind.words, ", ")
		}
		for k, member := range f.members {
			tags := section.Type.FieldByIndex(member.index)
			s := add(section.Type.Name(), tags, member, f.name+"."+member.name, f.index[0], member.index[0])
			if k == 0 {
				s.group = section.Tag.Get("group")
			}
		}
	}
	return out
}

// mustParse reads the text of a tag.
func mustParse(k kind, text string) any {
	v, err := k.parse(text)
	if err != nil {
		panic("BUG: a tag: " + err.Error())
	}
	return v
}

// commentsOf returns the comments above the fields of the structs of a source file, as "Struct.Field".
func commentsOf(source string) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "settings.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if of, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range of.Fields.List {
				out[spec.Name.Name+"."+f.Names[0].Name] = strings.TrimSpace(f.Doc.Text())
			}
		}
		return false
	})
	return out
}

// env is the variable that sets the setting.
func (s setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

// value reads the setting from a config.
func (s setting) value(c *Config) any {
	return reflect.ValueOf(c).Elem().FieldByIndex(s.index).Interface()
}

// assign writes the setting into a config.
func (s setting) assign(c *Config, v any) {
	switch list := v.(type) { // no two configs share one
	case []string:
		v = slices.Clone(list)
	case []Listener:
		v = slices.Clone(list)
	}
	reflect.ValueOf(c).Elem().FieldByIndex(s.index).Set(reflect.ValueOf(v))
}

// format renders the value in a config as flags and variables write it.
func (s setting) format(c *Config) string { return formatValue(s.value(c)) }

// sectionName is the map of a file that has the setting.
func (s setting) sectionName() string {
	name, _, _ := strings.Cut(s.path, ".")
	return name
}
