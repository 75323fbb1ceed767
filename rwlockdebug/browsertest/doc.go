// Package browsertest has the test that looks at the page of rwlockdebug with a browser. It is a module of
// its own, so that users of the library do not download what controls the browser.
package browsertest
