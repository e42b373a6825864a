package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestNoErrorHoldsToken puts a token in the place of every value and key of a file of credentials.
func TestNoErrorHoldsToken(t *testing.T) {
	const secret = "kvc_s3cretS3cretS3cretS3cretS3cretS3cretS3cret1"
	sum, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	f := func(token, text string) {
		t.Helper()
		_, err := ParseCredentials("c.yaml", []byte(strings.ReplaceAll(text, "SECRET", token)))
		if err == nil || strings.Contains(err.Error(), "3cret") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, token := range []string{secret, secret[:12], strings.TrimPrefix(secret, "kvc_")} {
		for _, text := range []string{
			"SECRET",
			"tokens: SECRET",
			"tokens: [SECRET]",
			"tokens: {SECRET: 1}",
			"tokens: [{name: a, sha256: " + sum + ", roles: [SECRET], tenants: [x]}]",
			"tokens: [{name: a, sha256: " + sum + ", roles: SECRET, tenants: [x]}]",
			"tokens: [{name: a, sha256: " + sum + ", roles: [query], tenants: SECRET}]",
			"tokens: [{name: a, sha256: SECRET, roles: [query], tenants: [x]}]",
			"tokens: [{name: a, token: SECRET, roles: [query], tenants: [x]}]",
			"tokens: [{name: SECRET}, {name: SECRET}]",
			"tokens: [{name: a, subject: SECRET}]",
			"certificates: [{name: a, subject: SECRET}, {name: b, subject: SECRET}]",
			"certificates: [{name: a, subject: b, sha256: SECRET}]",
			"tokens: [{name: a, tenants: [SECRET], weight: 1}, {name: b, tenants: [SECRET], weight: 2}]",
			"tokens: [{name: a, tenants: ['*', SECRET]}]",
			"tokens: [{name: a, weight: SECRET}]",
			"tokens: [{name: a, weight: !!int SECRET}]",
			"tokens: [{name: !!binary SECRET}]",
			"tokens: [*SECRET]",
			"tokens: [!SECRET a]",
			"SECRET",
		} {
			f(token, text)
		}
	}
	f(secret, "SECRET: []")
	f(secret, "tokens: [{SECRET: a}]")
	f(secret, "tokens: [{SECRET: a, SECRET: b}]")

	_, err := ParseCredentials("c.yaml", []byte("tokens: [{name: a, sha256: "+sum+", roles: [qury], tenants: [x], weight: 5}, "+
		"{name: a, sha256: "+other+", roles: [query], tenants: [x], weight: 2}]"))
	for _, want := range []string{`"qury" is no role`, `"a" is taken`,
		`weight: tenant "x" has weight 5 in another entry: give all its entries the same weight`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

// TestMistakesOfCredentialsAreBounded reads a file that is wrong throughout.
func TestMistakesOfCredentialsAreBounded(t *testing.T) {
	for _, text := range []string{
		"tokens: [" + strings.Repeat("x,", 500_000) + "]",
		"certificates: [" + strings.Repeat("{a: 1},", 100_000) + "]",
		"tokens: [{roles: [" + strings.Repeat("x,", 500_000) + "]}]",
	} {
		if _, err := ParseCredentials("c.yaml", []byte(text)); err == nil || strings.Count(err.Error(), "\n") > 1000 {
			t.Errorf("%.20s: %.300v", text, err)
		}
	}
}

// TestWeightOfOne holds that a weight of 1, one of 0 and none are the same.
func TestWeightOfOne(t *testing.T) {
	text := "tokens:\n"
	for i, weight := range []string{", weight: 1", "", ", weight: 0", ", weight: ~"} {
		text += fmt.Sprintf("- {name: n%d, sha256: %064d, roles: [query], tenants: [x]%s}\n", i, i, weight)
	}
	c, err := ParseCredentials("c.yaml", []byte(text))
	if err != nil || slices.ContainsFunc(c.tokens, func(t token) bool { return t.client.Weight > 1 }) {
		t.Error(err)
	}
}
