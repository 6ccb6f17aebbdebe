"""``python -m ms_recipe``: the same as the console script."""

from ms_recipe.cli import main

if __name__ == "__main__":
    main()
