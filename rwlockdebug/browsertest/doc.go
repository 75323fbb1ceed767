// Package browsertest tests the page of rwlockdebug in a browser. It is a separate module, so that users of
// the library do not download the packages that control the browser.
package browsertest
