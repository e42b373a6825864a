package body

import "strconv"

// Names returns the fields of the shape that have an effect.
func (s Shape) Names() (names []string) {
	for i := range s {
		if !s[i].Kind.ignored {
			names = append(names, s[i].Name)
		}
	}
	return names
}

// Strangers calls visit for each field of a valid object that the shape lacks, and
// of the objects in it that have a shape. path is the path of the object that has the
// field, "" for raw, and near the shape of that object.
func (s Shape) Strangers(c Codec, raw []byte, visit func(path, name string, near Shape)) {
	s.visitStrangers(c, raw, "", visit)
}

func (s Shape) visitStrangers(c Codec, raw []byte, path string, visit func(path, name string, near Shape)) {
	for name, value := range c.Pairs(raw) {
		field := s.fieldNamed([]byte(name))
		switch {
		case field == nil:
			visit(path, name, s)
		case field.Kind.objects && c.Type(value) == Array:
			i := 0
			for element := range c.Elements(value) {
				if i == MaxItems {
					break
				}
				if c.Type(element) == Object {
					field.Kind.of.visitStrangers(c, element, path+name+"["+strconv.Itoa(i)+"].", visit)
				}
				i++
			}
		}
	}
}
