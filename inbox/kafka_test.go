package inbox_test

func stopKafka() {}
