package kafka

import "encoding/binary"

// murmur2 is the hash of org.apache.kafka.common.utils.Utils.murmur2, which
// places a key as the Java client's default partitioner does.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(key))
	for len(key) >= 4 {
		k := binary.LittleEndian.Uint32(key)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
		key = key[4:]
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

// partitionOf places a key that is not null among count partitions:
// toPositive(murmur2(key)) % count, where toPositive clears the sign.
func partitionOf(key []byte, count int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % count
}
