"""What a clean verdict rests on: waits that hold by chance, mechanisms never exercised, memory that no trace shows."""
