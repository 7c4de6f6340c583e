package catalog

// EndOfRecords is for its test.
var EndOfRecords = endOfRecords

// MayFollow is for its test.
var MayFollow = mayFollow
