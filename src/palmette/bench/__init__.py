"""What measures Palmette, and stands for what is not to be measured."""
