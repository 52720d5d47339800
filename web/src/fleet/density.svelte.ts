/** How close things stand on the board. A matter of taste and screen: kept in the browser, not in the address. */
import type { Density } from './layout'

const KEY = 'gpudeck.density'

export class DensityChoice {
  value: Density = $state('comfortable')

  constructor(private readonly storage: () => Pick<Storage, 'getItem' | 'setItem'> = () => localStorage) {
    try {
      if (storage().getItem(KEY) === 'compact') this.value = 'compact'
    } catch {
      // Storage may be forbidden: the usual one is used.
    }
  }

  choose(density: Density): void {
    this.value = density
    try {
      this.storage().setItem(KEY, density)
    } catch {
      // Storage may be forbidden: the choice then lasts as long as the page.
    }
  }
}

/** The one of this page. */
export const densityChoice = new DensityChoice()
