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

// Strangers calls visit for each field of a valid JSON object that the shape lacks, and
// of the objects in it that have a shape. path is the path of the object that has the
// field, "" for raw, and near the shape of that object.
func (s Shape) Strangers(raw []byte, visit func(path, name string, near Shape)) {
	s.strangers(raw, "", visit)
}

func (s Shape) strangers(raw []byte, path string, visit func(path, name string, near Shape)) {
	for name, value := range Pairs(raw) {
		field := s.find([]byte(name))
		switch {
		case field == nil:
			visit(path, name, s)
		case field.Kind.objects && value[0] == '[':
			i := 0
			for element := range Elements(value) {
				if i == MaxItems {
					break
				}
				if element[0] == '{' {
					field.Kind.of.strangers(element, path+name+"["+strconv.Itoa(i)+"].", visit)
				}
				i++
			}
		}
	}
}
