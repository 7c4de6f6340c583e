package catalog

// EndOfRecords is for its test.
var EndOfRecords = endOfRecords
