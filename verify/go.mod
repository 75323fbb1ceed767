module github.com/seed-7e8842f7/rwlock/verify

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/google/uuid v1.6.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/seed-7e8842f7/rwlock v0.1.0
	github.com/stretchr/testify v1.12.1
	github.com/yuin/gopher-lua v1.1.1
)

replace github.com/seed-7e8842f7/rwlock => ../
